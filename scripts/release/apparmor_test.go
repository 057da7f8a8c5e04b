package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const apparmorProfile = "../../packaging/apparmor/coterie"

// TestAppArmorParses holds that AppArmor's own parser understands the profile.
func TestAppArmorParses(t *testing.T) {
	parser, err := exec.LookPath("apparmor_parser")
	for _, at := range []string{"/sbin/apparmor_parser", "/usr/sbin/apparmor_parser"} {
		if _, missing := os.Stat(at); err != nil && missing == nil {
			parser, err = at, nil
		}
	}
	if err != nil {
		t.Skip("NOT RUN: apparmor_parser is not installed (Debian: apparmor)")
	}
	args := []string{"-Q", "-K", apparmorProfile}
	if base := filepath.Join(filepath.Dir(parser), "../etc/apparmor.d"); dir(base) {
		args = append([]string{"--base", base}, args...)
	}
	if out, err := exec.CommandContext(t.Context(), parser, args...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func dir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// TestAppArmorRules holds what the profile allows a node by itself, without the rules that it includes, what it does
// not allow, and that it forbids nothing before an administrator says so.
func TestAppArmorRules(t *testing.T) {
	text, err := os.ReadFile(apparmorProfile)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"\nprofile coterie flags=(attach_disconnected, complain) {\n", "\n  include if exists <local/coterie>\n", "\nabi <abi/3.0>,\n"} {
		if !strings.Contains(string(text), line) {
			t.Errorf("the profile lacks %q", line)
		}
	}
	if regexp.MustCompile(`(?m)[ ,]([pcuPCU]+x)`).Match(text) {
		t.Error("a program changes its profile: with NoNewPrivileges of the unit it could not begin")
	}
	const data = "/var/lib/coterie-billing/pgdata/base/5/16384"
	for what, paths := range map[string][]string{
		"x": {"/usr/bin/coterie", "/usr/local/bin/coterie", "/usr/lib/postgresql/17/bin/postgres", "/usr/pgsql-16/bin/initdb", "/bin/sh", "/usr/bin/pgbackrest", "/var/lib/coterie/hooks.d/page"},
		"r": {"/var/lib/coterie/coterie.yaml", "/proc/12/exe", "/proc/pressure/cpu", "/sys/class/block/vda/size", "/usr/share/postgresql/15/postgres.bki", "/etc/pgbackrest.conf", "/etc/pgbackrest/conf.d/x"},
		"w": {data, "/var/lib/coterie/state/promise.json", "/run/coterie/0a1b2c3d/pg/.s.PGSQL.5432", "/var/run/postgresql/.s.PGSQL.5432", "/dev/shm/PostgreSQL.1234", "/tmp/coterie-101/x/agent.sock", "/proc/12/oom_score_adj", "/run/systemd/notify"},
		"k": {data + "/../postmaster.pid", "/var/lib/coterie/keeper/lock"},
		"l": {"/var/lib/coterie/pgdata-17/base/1/1", "/var/lib/postgresql/17/main/base/1/1"},
	} {
		for _, p := range paths {
			if !allows(string(text), strings.Replace(p, "/var/run/", "/run/", 1), what) {
				t.Errorf("a node may not %s %s", what, p)
			}
		}
	}
	for what, paths := range map[string][]string{
		"r": {"/etc/shadow", "/root/.ssh/id_rsa", "/home/me/.pgpass", "/boot/vmlinuz", "/dev/sda", "/var/lib/mysql/ibdata1"},
		"w": {"/usr/bin/coterie", "/usr/lib/postgresql/17/bin/postgres", "/etc/passwd", "/etc/systemd/system/x.service", "/etc/apparmor.d/coterie", "/proc/sys/kernel/core_pattern", "/sys/power/state"},
		"x": {"/tmp/x", data, "/dev/shm/x", "/var/lib/postgresql/x"},
	} {
		for _, p := range paths {
			if allows(string(text), p, what) {
				t.Errorf("a node may %s %s", what, p)
			}
		}
	}
}

// rule is a rule about files, with its path and what it allows.
var rule = regexp.MustCompile(`(?m)^  (?:owner )?([/@]\S*) ([a-z]+),$`)

// allows reports whether a rule of the profile allows a use of a path.
func allows(profile, path, what string) bool {
	for _, r := range rule.FindAllStringSubmatch(profile, -1) {
		if strings.Contains(r[2], what) && pattern(r[1]).MatchString(path) {
			return true
		}
	}
	return false
}

// pattern returns a path of a rule as an expression, with the usual values of AppArmor's variables.
func pattern(glob string) *regexp.Regexp {
	glob = strings.NewReplacer("@{PROC}", "/proc", "@{sys}", "/sys", "@{run}", "/run", "@{pids}", "[0-9]+", "@{tid}", "[0-9]+").Replace(glob)
	var b strings.Builder
	for i, deep := 0, 0; i < len(glob); i++ {
		switch c := glob[i]; {
		case strings.HasPrefix(glob[i:], "[0-9]+"):
			b.WriteString("[0-9]+")
			i += len("[0-9]+") - 1
		case strings.HasPrefix(glob[i:], "**"):
			b.WriteString(".*")
			i++
		case c == '*':
			b.WriteString("[^/]*")
		case c == '{':
			b.WriteString("(?:")
			deep++
		case c == '}':
			b.WriteString(")")
			deep--
		case c == ',' && deep > 0:
			b.WriteString("|")
		default:
			b.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	return regexp.MustCompile("^" + b.String() + "$")
}
