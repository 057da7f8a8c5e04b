// Command release makes the files of a release in dist/: a deb, an rpm and a tarball for each architecture, the list of
// the modules that are linked (SBOM), and SHA256SUMS of all of it. It is run in the root of the source tree.
//
// Two runs on the same source give the same bytes: the time of everything is that of the commit, or SOURCE_DATE_EPOCH.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is one run of the program.
type release struct {
	root    string // of the source tree
	dist    string
	nfpm    string // the program; "": no packages
	version string
	commit  string
	date    time.Time
	out     io.Writer
}

func run(ctx context.Context, args []string, out io.Writer) error {
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	version := f.String("version", "0.1.0-dev", "version of the release")
	nfpm := f.String("nfpm", "", "version of nfpm, which makes the deb and the rpm; empty: none are made")
	arch := f.String("arch", "amd64,arm64", "architectures")
	dist := f.String("dist", "dist", "directory for the result; it is made anew")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 || *version == "" || strings.HasPrefix(*version, "v") {
		return errors.New("usage: release -version 1.2.3 [-nfpm VERSION] [-arch amd64,arm64] [-dist DIR]")
	}
	root, err := filepath.Abs(".")
	if err != nil {
		return err
	}
	r := &release{root: root, version: *version, out: out}
	if r.dist, err = filepath.Abs(*dist); err != nil {
		return err
	}
	if err := r.source(ctx); err != nil {
		return err
	}
	if *nfpm != "" {
		if r.nfpm, err = r.tool(ctx, *nfpm); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(r.dist); err != nil {
		return err
	}
	if err := os.MkdirAll(r.dist, 0o755); err != nil { //nolint:gosec // for everybody
		return err
	}
	work, err := os.MkdirTemp("", "coterie-release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }()
	if err := r.common(ctx, filepath.Join(work, "common")); err != nil {
		return err
	}
	for a := range strings.SplitSeq(*arch, ",") {
		if err := r.architecture(ctx, work, strings.TrimSpace(a)); err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
	}
	if err := r.sums(); err != nil {
		return err
	}
	return r.sign(ctx)
}

// source finds the commit and the time of the source.
func (r *release) source(ctx context.Context) error {
	r.commit, r.date = "unknown", time.Unix(0, 0).UTC()
	if text, err := r.output(ctx, nil, "git", "describe", "--always", "--dirty", "--exclude", "*"); err == nil {
		r.commit = text
	}
	if text, err := r.output(ctx, nil, "git", "log", "-1", "--format=%ct"); err == nil {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			r.date = time.Unix(n, 0).UTC()
		}
	}
	if text := os.Getenv("SOURCE_DATE_EPOCH"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
		r.date = time.Unix(n, 0).UTC()
	}
	return nil
}

// tool builds nfpm by the module proxy, pinned, as a program beside ours: its modules are none of ours.
func (r *release) tool(ctx context.Context, version string) (string, error) {
	bin := filepath.Join(r.root, "bin")
	_, err := r.output(ctx, []string{"GOBIN=" + bin}, "go", "install", "github.com/goreleaser/nfpm/v2/cmd/nfpm@"+version)
	return filepath.Join(bin, "nfpm"), err
}

// output runs a program in the root of the source and returns its standard output.
func (r *release) output(ctx context.Context, env []string, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Env = r.root, append(os.Environ(), env...)
	var said strings.Builder
	c.Stderr = &said
	b, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, said.String())
	}
	return strings.TrimSpace(string(b)), nil
}

// build builds the program for an architecture.
func (r *release) build(ctx context.Context, to, arch string) error {
	const info = "github.com/coteriedb/coterie/internal/lib/buildinfo"
	flags := fmt.Sprintf("-s -w -buildid= -X %s.Version=%s -X %s.Commit=%s -X %s.Date=%s", info, r.version, info, r.commit, info, r.date.Format(time.RFC3339))
	_, err := r.output(ctx, []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch}, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", to, "./cmd/coterie")
	return err
}

// common makes the files that are the same for every architecture: manual pages, completions, units and texts.
func (r *release) common(ctx context.Context, dir string) error {
	for _, d := range []string{"man", "completions", "fail2ban", "prometheus", "grafana", "firewalld", "ufw", "apparmor"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil { //nolint:gosec // for everybody
			return err
		}
	}
	program := filepath.Join(filepath.Dir(dir), "program")
	if err := r.build(ctx, program, runtime.GOARCH); err != nil {
		return err
	}
	if _, err := r.output(ctx, nil, program, "man", filepath.Join(dir, "man")); err != nil {
		return err
	}
	if err := squeeze(filepath.Join(dir, "man")); err != nil {
		return err
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		text, err := r.output(ctx, nil, program, "completion", shell)
		if err != nil {
			return err
		}
		if err := put(filepath.Join(dir, "completions", "coterie."+shell), text+"\n"); err != nil {
			return err
		}
	}
	unit, err := os.ReadFile(filepath.Join(r.root, "packaging", "coterie.service"))
	if err != nil {
		return err
	}
	for name, text := range units(string(unit)) {
		if err := put(filepath.Join(dir, name), text); err != nil {
			return err
		}
	}
	for from, to := range documents {
		text, err := os.ReadFile(filepath.Join(r.root, from))
		if err != nil {
			return err
		}
		if err := put(filepath.Join(dir, to), string(text)); err != nil {
			return err
		}
	}
	return nil
}

// documents are the files of the source that packages have among their documentation, and where.
var documents = map[string]string{
	"LICENSE": "LICENSE", "README.md": "README.md", "CHANGELOG.md": "CHANGELOG.md", "packaging/fail2ban/coterie.conf": "fail2ban/coterie.conf",
	"packaging/prometheus/scrape.yml": "prometheus/scrape.yml", "packaging/prometheus/coterie.rules.yml": "prometheus/coterie.rules.yml",
	"packaging/grafana/coterie.json": "grafana/coterie.json", "packaging/ufw/coterie": "ufw/coterie", "packaging/apparmor/coterie": "apparmor/coterie",
	"packaging/firewalld/coterie.xml": "firewalld/coterie.xml", "packaging/firewalld/coterie-monitoring.xml": "firewalld/coterie-monitoring.xml",
}

// units returns the units of the packages, by name: coterie.service for the program where packages put it, and
// coterie@.service for further nodes on a host, each in a directory of its own.
func units(source string) map[string]string {
	one := strings.ReplaceAll(source, "/usr/local/bin/", "/usr/bin/")
	many := strings.NewReplacer("/var/lib/coterie", "/var/lib/coterie-%i", "Description=Coterie node", "Description=Coterie node %i",
		`"systemctl reload coterie"`, `"systemctl reload coterie@NAME"`).Replace(one)
	return map[string]string{"coterie.service": one, "coterie@.service": many}
}

func put(path, text string) error {
	return os.WriteFile(path, []byte(text), 0o644) //nolint:gosec // for everybody
}
