package parameters

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// checkTime is how long PostgreSQL may take to judge one value.
const checkTime = 10 * time.Second

// Check returns an error if this server could not have that value: the setting belongs to the group or to the agent,
// PostgreSQL refuses it, a library is not installed here, or this host has not the memory. It does not ask the running
// server, so that a value can be mended while that does not start.
func (s Server) Check(ctx context.Context, name, value string) error {
	if instead, reserved := settings.Reserved(name); reserved {
		return fail.Error{Kind: fail.Refused, Hint: instead, Err: fmt.Errorf("%s belongs to the availability group, not to its settings of PostgreSQL", name)}
	}
	if s.Fixed(name) {
		return fail.Refusedf("%s is set by the agent at each start of the server: another value would have no effect", name)
	}
	out, err := s.judged(ctx, name, value)
	if err != nil {
		return err
	}
	if strings.HasSuffix(name, "_preload_libraries") {
		return s.librariesHere(ctx, name, value)
	}
	if name == "shared_buffers" {
		return fitsMemory(out)
	}
	return nil
}

// judged has the server's program read its configuration with that value, and returns the value as it understands it.
func (s Server) judged(ctx context.Context, name, value string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.Install.BinDir, "postgres"),
		"-C", name, "-D", s.PGData, "-c", "config_file="+s.ConfigFile, "-c", "data_directory="+s.PGData, "-c", name+"="+value)
	cmd.Env = programs.ToolEnv()
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err == nil {
		return strings.TrimSpace(string(out)), nil
	}
	for line := range strings.Lines(said.String()) {
		if _, why, is := strings.Cut(line, "FATAL:"); is {
			return "", fail.Usagef("PostgreSQL %s does not take %s = '%s': %s", s.Install.Version, name, value, strings.TrimSpace(why))
		}
	}
	return "", fmt.Errorf("have PostgreSQL judge %s = '%s': %w: %s", name, value, err, programs.LastText([]byte(said.String())))
}

// librariesHere returns an error if a library is not installed on this host: the server would not start again.
func (s Server) librariesHere(ctx context.Context, name, value string) error {
	dir, err := s.Text(ctx, "SELECT setting FROM pg_config WHERE name = 'PKGLIBDIR'")
	if err != nil {
		return fail.Unhealthyf("whether the libraries of %s are installed cannot be said while the server does not answer: %v", name, err)
	}
	for _, lib := range elements(value) {
		path := strings.Replace(lib, "$libdir", dir, 1)
		if !strings.Contains(path, "/") {
			path = filepath.Join(dir, path)
		}
		if filepath.Ext(path) == "" {
			path += ".so"
		}
		if _, err := os.Stat(path); err != nil {
			return fail.Error{
				Kind: fail.Refused, Hint: "install its package on every replica first",
				Err: fmt.Errorf("library %s is not installed on this host (%s): the server would not start again", lib, path),
			}
		}
	}
	return nil
}

// fitsMemory returns an error if the host has not the memory for shared_buffers, given in blocks of 8 kB as PostgreSQL
// prints it.
func fitsMemory(blocks string) error {
	n, err := strconv.ParseUint(blocks, 10, 64)
	if err != nil {
		return nil //nolint:nilerr // printed in another way: PostgreSQL has judged it
	}
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		return nil //nolint:nilerr // the host does not say
	}
	want, has := n*8192, host.Totalram*uint64(host.Unit)
	if want < has {
		return nil
	}
	return fail.Error{
		Kind: fail.Refused, Hint: fmt.Sprintf("a quarter of the memory, %d MB, is usual", has>>22),
		Err: fmt.Errorf("shared_buffers would be %d MiB, and this host has %d MiB of memory: the server would not start again", want>>20, has>>20),
	}
}

// NeedsRestart reports whether a setting takes effect only when the server starts. A setting that no library has
// defined yet does, since the library is loaded then.
func (s Server) NeedsRestart(ctx context.Context, name string) (bool, error) {
	context, err := s.Text(ctx, "SELECT coalesce((SELECT context FROM pg_settings WHERE name = "+settings.QuoteLiteral(name)+"), 'postmaster')")
	return context == "postmaster", err
}

// PendingRestarts returns how many settings have another value in the files that waits for a restart of the server.
// Of the settings that the command line overrides only the limits are counted, which a restart may change.
func (s Server) PendingRestarts(ctx context.Context) (int, error) {
	limits, err := s.limits(ctx)
	if err != nil {
		return 0, err
	}
	wait, names := 0, make([]string, 0, len(limits))
	for _, l := range limits {
		if names = append(names, settings.QuoteLiteral(l.Name)); l.Waits() {
			wait++
		}
	}
	text, err := s.Text(ctx, "SELECT count(*)::text FROM pg_settings WHERE pending_restart AND source <> 'command line' AND name NOT IN ("+strings.Join(append(names, "''"), ", ")+")")
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("the settings that wait for a restart: %w", err)
	}
	return n + wait, nil
}

// RunsPrograms reports whether a setting can have the server run a program, load a library, or write a file of
// somebody's choice. The server knows a setting in any case.
func RunsPrograms(name string) bool {
	name = strings.ToLower(name)
	for _, part := range []string{"command", "library", "libraries", "path", "directory", "file", "provider", "conninfo", "hook", "program"} {
		if strings.Contains(name, part) && name != "search_path" {
			return true
		}
	}
	return strings.Contains(name, ".") // of an extension: its meaning is not known here
}
