package programs

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The supported major versions.
const (
	MinMajor = 14
	MaxMajor = 18
)

// Install is one set of PostgreSQL binaries on this machine.
type Install struct {
	Major   int    // 15
	Version string // "15.18"
	BinDir  string
	Num     int  // server_version_num: 150018
	Rewind  bool // pg_rewind is installed (some distributions package it apart)
}

// binDirPatterns are where distributions put the server's binaries, which are seldom in PATH.
var binDirPatterns = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu, SUSE uses postgresqlNN
	"/usr/lib/postgresql[0-9]*/bin",
	"/usr/pgsql-*/bin", // the PGDG's RPMs
	"/usr/libexec/postgresql[0-9]*",
	"/usr/local/pgsql/bin",
	"/usr/local/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
}

// Find returns the supported PostgreSQL installations of this machine, each once. Those in $COTERIE_PG_BINDIRS (a list
// like PATH) come first and in its order, so that the first result is the requested one. Then, newest first, come those
// of pg_config, PATH and the places of distributions. An empty result is not an error.
func Find(ctx context.Context) ([]Install, error) {
	var found []Install
	seen := map[string]bool{}
	asked := filepath.SplitList(os.Getenv("COTERIE_PG_BINDIRS"))
	pinned := 0
	for i, dir := range append(asked, candidateDirs(ctx)...) {
		server, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
		if err != nil || seen[server] {
			continue
		}
		seen[server] = true
		in, err := inspect(ctx, filepath.Dir(server))
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("find PostgreSQL: %w", err)
		}
		if err != nil || in.Major < MinMajor || in.Major > MaxMajor {
			continue
		}
		found = append(found, in)
		if i < len(asked) {
			pinned++
		}
	}
	slices.SortStableFunc(found[pinned:], func(a, b Install) int { return cmp.Compare(b.Num, a.Num) })
	return found, nil
}

func candidateDirs(ctx context.Context) []string {
	var dirs []string
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	dirs = append(dirs, filepath.SplitList(os.Getenv("PATH"))...)
	for _, p := range binDirPatterns {
		if m, err := filepath.Glob(p); err == nil {
			dirs = append(dirs, m...)
		}
	}
	return dirs
}

// inspect reads the version of the binaries in dir. A directory without initdb and pg_controldata contains a client, or
// only a part of an installation, and is refused.
func inspect(ctx context.Context, dir string) (Install, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	dir, err := filepath.Abs(dir) // coterie.yaml keeps it, for processes that work elsewhere
	if err != nil {
		return Install{}, err
	}
	for _, need := range []string{"initdb", "pg_controldata"} {
		if !isThere(filepath.Join(dir, need)) {
			return Install{}, fmt.Errorf("%s has no %s", dir, need)
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "-V").Output()
	if err != nil {
		return Install{}, fmt.Errorf("ask %s/postgres for its version: %w", dir, err)
	}
	in, err := parseVersion(string(out))
	if err != nil {
		return Install{}, err
	}
	in.BinDir, in.Rewind = dir, isThere(filepath.Join(dir, "pg_rewind"))
	return in, nil
}

var versionPattern = regexp.MustCompile(`^postgres \([^)]*\) (([0-9]{1,3})(?:\.([0-9]{1,3}))?(?:devel|(?:alpha|beta|rc)[0-9]+)?)(?:\s|$)`)

// parseVersion reads the output of postgres -V, as in "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)".
func parseVersion(s string) (Install, error) {
	m := versionPattern.FindStringSubmatch(s)
	if m == nil {
		return Install{}, fmt.Errorf("%.80q is not the version of a PostgreSQL server", s)
	}
	major, _ := strconv.Atoi(m[2])
	minor, _ := strconv.Atoi(m[3]) // "" of a beta: 0
	return Install{Major: major, Version: m[1], Num: major*10000 + minor}, nil
}

// Inspect returns the installation in dir, or an error that explains what is wrong with it.
func Inspect(ctx context.Context, dir string) (Install, error) {
	in, err := inspect(ctx, dir)
	if err == nil && (in.Major < MinMajor || in.Major > MaxMajor) {
		err = fmt.Errorf("%s has PostgreSQL %s; supported are %d to %d", dir, in.Version, MinMajor, MaxMajor)
	}
	return in, err
}

func isThere(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
