package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// system is a root directory of this machine's files, of which a test may change any.
type system struct {
	t    *testing.T
	root string
}

// newSystem makes one by an overlay.
func newSystem(t *testing.T) *system {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: a root directory of its own needs root")
	}
	dir, err := os.MkdirTemp("/tmp", "coterie-release-test")
	if err != nil {
		t.Fatal(err)
	}
	s := &system{t, filepath.Join(dir, "root")}
	for _, d := range []string{"root", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if out, err := exec.CommandContext(t.Context(), "mount", "-t", "overlay", "overlay", "-o", "lowerdir=/,upperdir="+dir+"/upper,workdir="+dir+"/work", s.root).CombinedOutput(); err != nil {
		t.Skipf("NOT RUN: no overlay of this machine's files can be mounted: %s", out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", s.root).Run() })
	return s
}

// run runs a script of the packages in the system.
func (s *system) run(script string, args ...string) {
	s.t.Helper()
	text, err := os.ReadFile("../../packaging/scripts/" + script)
	if err != nil {
		s.t.Fatal(err)
	}
	c := exec.CommandContext(s.t.Context(), "chroot", append([]string{s.root, "sh", "-s", "--"}, args...)...)
	c.Stdin, c.Env = strings.NewReader(string(text)), []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	if out, err := c.CombinedOutput(); err != nil {
		s.t.Fatalf("%s %v: %v\n%s", script, args, err, out)
	}
}

// line returns the line of a user or group in a file, "" if there is none.
func (s *system) line(file, name string) string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.root, "etc", file))
	if err != nil {
		s.t.Fatal(err)
	}
	return regexp.MustCompile(`(?m)^` + name + `:.*$`).FindString(string(text))
}

// without removes lines of a user or group, by their pattern, from all files of accounts.
func (s *system) without(pattern string) {
	s.t.Helper()
	for _, file := range []string{"passwd", "shadow", "group", "gshadow"} {
		path := filepath.Join(s.root, "etc", file)
		text, err := os.ReadFile(path)
		if err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(path, regexp.MustCompile(`(?m)^(`+pattern+`):.*\n`).ReplaceAll(text, nil), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestPostinstallMakesTheUser holds that a package makes the user that a node runs as where no PostgreSQL has made it,
// as the distribution would, and leaves an existing one as it is.
func TestPostinstallMakesTheUser(t *testing.T) {
	for name, c := range map[string]struct {
		debian, group bool
		occupied      string // an account with the number that Red Hat's family has set aside
		want          string
	}{
		"debian":                 {debian: true, want: `^postgres:x:\d+:\d+:PostgreSQL administrator:/var/lib/postgresql:/bin/bash$`},
		"debian, a group alone":  {debian: true, group: true, want: `^postgres:x:\d+:7654:PostgreSQL administrator:/var/lib/postgresql:/bin/bash$`},
		"red hat":                {want: `^postgres:x:26:26:PostgreSQL administrator:/var/lib/pgsql:/bin/bash$`},
		"red hat, number in use": {occupied: "other:x:26:26::/:/bin/false\n", want: `^postgres:x:\d\d\d+:\d+:PostgreSQL administrator:/var/lib/pgsql:/bin/bash$`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSystem(t)
			s.without("postgres|[^:]*:[^:]*:26")
			if !c.debian {
				if err := os.Remove(filepath.Join(s.root, "etc/debian_version")); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
			} else if err := os.WriteFile(filepath.Join(s.root, "etc/debian_version"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{"passwd": c.occupied, "group": map[bool]string{true: "postgres:x:7654:\n"}[c.group]} {
				f, err := os.OpenFile(filepath.Join(s.root, "etc", file), os.O_APPEND|os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				_, err = f.WriteString(text)
				if _ = f.Close(); err != nil {
					t.Fatal(err)
				}
			}
			s.run("postinstall", "configure", "")
			made := s.line("passwd", "postgres")
			if !regexp.MustCompile(c.want).MatchString(made) || s.line("group", "postgres") == "" {
				t.Errorf("it has made %q, group %q", made, s.line("group", "postgres"))
			}
			s.run("postinstall", "configure", "0.1.0")
			s.run("preremove", "remove")
			s.run("postremove", "remove")
			if now := s.line("passwd", "postgres"); now != made {
				t.Errorf("an upgrade and the removal have changed %q to %q", made, now)
			}
		})
	}
}

// TestPostinstallLeavesTheUser holds that a user of the machine stays as it is.
func TestPostinstallLeavesTheUser(t *testing.T) {
	s := newSystem(t)
	s.without("postgres")
	const theirs = "postgres:x:4321:4321:ours:/home/db:/bin/sh"
	f, err := os.OpenFile(filepath.Join(s.root, "etc/passwd"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(theirs + "\n")
	if _ = f.Close(); err != nil {
		t.Fatal(err)
	}
	s.run("postinstall", "configure", "")
	if now := s.line("passwd", "postgres"); now != theirs || s.line("group", "postgres") != "" {
		t.Errorf("%q, group %q", now, s.line("group", "postgres"))
	}
}
