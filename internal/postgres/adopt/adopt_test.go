package adopt_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/unixuser"
	"github.com/coteriedb/coterie/internal/test/ports"
)

var shared *bench

func (b *bench) template() string { return filepath.Join(b.dir, "template") }

func TestRefusals(t *testing.T) {
	b := shared
	conf := func(text string) func(*testing.T, string) {
		return func(t *testing.T, data string) { b.write(t, filepath.Join(data, "postgresql.conf"), text) }
	}
	file := func(name, text string) func(*testing.T, string) {
		return func(t *testing.T, data string) { b.write(t, filepath.Join(data, name), text) }
	}
	sql := func(statements ...string) func(*testing.T, string) {
		return func(t *testing.T, data string) {
			if err := b.startAnd(data, statements...); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name    string
		prepare func(t *testing.T, data string)
		flags   []string
		want    []string
	}{
		{"running", file("postmaster.pid", fmt.Sprintf("%d\n", os.Getpid())), nil, []string{"the cluster is running"}},
		{"crashed", func(t *testing.T, data string) {
			opts := "-c listen_addresses='' -c unix_socket_directories=" + b.dir
			if out, code := b.server("pg_ctl", "start", "-w", "-D", data, "-l", data+".log", "-o", opts); code != 0 {
				t.Fatal(out)
			}
			b.server("pg_ctl", "stop", "-w", "-m", "immediate", "-D", data)
		}, nil, []string{"not cleanly shut down"}},
		{"many reasons", func(t *testing.T, data string) {
			for _, f := range []string{"standby.signal", "recovery.signal", "backup_label", "coterie.copy"} {
				file(f, "x")(t, data)
			}
			conf("wal_level = minimal\nmax_wal_senders = 0\nfsync = off\nrecovery_target_name = 'x'\n")(t, data)
			file("pg_hba.conf", "host all all 10.0.0.0/8 ldap ldapserver=x\nlocal all all peer map=m\nhost all @admins \\\n all md5\n")(t, data)
			b.write(t, filepath.Join(data, "../node/x"), "")
		}, nil, []string{
			"there is standby.signal", "there is recovery.signal", "never started", "already belongs to a group", "says wal_level=minimal", "fsync=off",
			"recovery target is set: recovery_target_name", "method ldap cannot be checked", `option "map=m" is not supported`, "lists in files", "is not empty",
		}},
		{"ran minimal", func(t *testing.T, data string) {
			conf("wal_level = minimal\nmax_wal_senders = 0\n")(t, data)
			sql("SELECT 1")(t, data)
			conf("wal_level = replica\n")(t, data)
		}, nil, []string{"ran with wal_level=minimal"}},
		{"sockets for some", conf("unix_socket_permissions = 0770\n"), nil, []string{"unix_socket_permissions = 0770 keeps users"}},
		{"unreadable", conf("nonsense = 1\n"), nil, []string{"configuration cannot be read"}},
		{"elsewhere", conf("data_directory = '/elsewhere'\n"), nil, []string{"configuration"}},
		{"slot", sql("SELECT pg_create_physical_replication_slot('old', true)"), nil, []string{"physical replication slots, so standbys or backup tools stream from this cluster: old"}},
		{"database", sql("SELECT pg_create_physical_replication_slot('old', true)", "CREATE DATABASE coterie"), []string{"--drop-standbys"}, []string{"a database named coterie"}},
		{"roles that cannot be read", func(t *testing.T, data string) {
			if err := os.RemoveAll(filepath.Join(data, "pg_multixact")); err != nil {
				t.Fatal(err)
			}
		}, nil, []string{"which role is the bootstrap superuser could not be read", "--superuser"}},
		{"no cluster", func(t *testing.T, data string) {
			if err := os.Remove(filepath.Join(data, "PG_VERSION")); err != nil {
				t.Fatal(err)
			}
		}, nil, []string{"not the data directory of a cluster"}},
		{"too old", func(t *testing.T, data string) {
			if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("12\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, nil, []string{"supported are 14 to 18"}},
		{"foreign owner", func(t *testing.T, data string) {
			if os.Getuid() != 0 {
				t.Skip("needs root")
			}
			if err := os.Chown(data, 1, 1); err != nil {
				t.Fatal(err)
			}
		}, nil, []string{"belongs to user " + unixuser.Name(1)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := b.cluster(t, false)
			data := filepath.Join(dir, "data")
			c.prepare(t, data)
			before := tree(t, dir)
			args := append([]string{"init", "--node", filepath.Join(dir, "node"), "--adopt", data, "--yes", "--read-write", ports.Address(t)}, portFlags(t)...)
			out, code := b.run(false, append(args, c.flags...)...)
			for _, want := range c.want {
				if code != 4 || !strings.Contains(out, want) {
					t.Errorf("exit %d, want 4 and %q:\n%s", code, want, out)
				}
			}
			if after := tree(t, dir); after != before {
				t.Error("a refusal changed something")
			}
		})
	}
}

// TestReport reads a report on a cluster in Debian's layout.
func TestReport(t *testing.T) {
	b := shared
	dir := b.cluster(t, true)
	before := tree(t, dir)
	base := append([]string{"init", "--node", filepath.Join(dir, "node"), "--adopt-root", dir}, portFlags(t)...)
	for _, target := range []string{b.name(), filepath.Join(dir, "data")} {
		for _, flags := range [][]string{nil, {"--yes", "--dry-run"}} {
			out, code := b.run(false, append(append(base, "--adopt", target), flags...)...)
			if code != 0 {
				t.Fatalf("exit %d:\n%s", code, out)
			}
			for _, want := range []string{
				"known as       " + b.name(), filepath.Join(dir, "data"), "shut down", "start.conf: auto -> disabled", "local all all trust",
				"mute has no password", "ancient has an md5 password", "1 with a scram-sha-256 password", "restore_command = 'cp /archive/%f %p' -> ''",
				"synchronous_standby_names = elsewhere: recorded", ".s.PGSQL.", "Nothing was changed",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("the report on %s lacks %q:\n%s", target, want, out)
				}
			}
		}
	}
	if out, code := b.run(false, append(base, "--dry-run")...); code != 2 || !strings.Contains(out, "belong to --adopt") {
		t.Errorf("a dry run of a new cluster: exit %d:\n%s", code, out)
	}
	if out, code := b.run(false, append(base, "--adopt", "data")...); code != 4 || !strings.Contains(out, "relative path") {
		t.Errorf("a relative path: exit %d:\n%s", code, out)
	}
	if out, code := b.run(false, append(base, "--adopt", strconv.Itoa(b.in.Major)+"/other")...); code != 4 || !strings.Contains(out, "pg_lsclusters") {
		t.Errorf("an unknown cluster: exit %d:\n%s", code, out)
	}
	if tree(t, dir) != before {
		t.Error("a report changed something")
	}
}

// TestFailureTakesBack makes the adoption fail after it has begun.
func TestFailureTakesBack(t *testing.T) {
	b := shared
	dir := b.cluster(t, true)
	etc := filepath.Join(b.etc(dir), "start.conf")
	auto := filepath.Join(dir, "data", "postgresql.auto.conf")
	was, _ := os.ReadFile(auto)
	// The last change cannot be made, because a directory has its name.
	if err := os.Mkdir(filepath.Join(dir, "data", "postgresql.conf.coterie-tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"init", "--node", filepath.Join(dir, "node"), "--adopt", b.name(), "--adopt-root", dir, "--yes", "--no-start"}, portFlags(t)...)
	out, code := b.run(false, args...)
	if code != 1 || !strings.Contains(out, "joining nodes") {
		t.Errorf("exit %d:\n%s", code, out)
	}
	if b, _ := os.ReadFile(etc); !strings.HasSuffix(string(b), "\nauto\n") {
		t.Errorf("start.conf is %q", b)
	}
	now, _ := os.ReadFile(auto)
	for line := range strings.Lines(string(was)) {
		if !strings.Contains(string(now), line) {
			t.Errorf("postgresql.auto.conf lost %q", line)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "data", "standby.signal")); err == nil {
		t.Error("standby.signal was left")
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "node")); len(left) > 0 {
		t.Errorf("the node directory holds %v", left)
	}
}

// commands returns the commands of docs/adopting.md, in their order.
func commands(t *testing.T) [][]string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/adopting.md")
	if err != nil {
		t.Fatal(err)
	}
	var all [][]string
	inside := false
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```sh"
		case inside && line != "":
			f := strings.Fields(line)
			if f[0] != "coterie" {
				t.Fatalf("the page has a command that this test does not run: %s", line)
			}
			all = append(all, f[1:])
		}
	}
	return all
}

// TestAdopt follows the page: report, adoption, operation as a group of one, release, and operation as before.
func TestAdopt(t *testing.T) {
	for _, ordinary := range []bool{false, true} {
		if ordinary && os.Getuid() != 0 {
			continue // the first round did that
		}
		t.Run(fmt.Sprintf("ordinary user %v", ordinary), func(t *testing.T) { testAdopt(t, shared, ordinary) })
	}
}

func testAdopt(t *testing.T, b *bench, ordinary bool) {
	dir := b.cluster(t, true)
	data, node := filepath.Join(dir, "data"), filepath.Join(dir, "node")
	systemctl := ""
	if os.Getuid() == 0 && !ordinary {
		systemctl = fakeSystemd(t, b, dir)
	}
	autoWas, _ := os.ReadFile(filepath.Join(data, "postgresql.auto.conf"))
	flags := portFlags(t)
	var stop func()
	for _, c := range commands(t) {
		for i := range c {
			if c[i] == "15/main" {
				c[i] = b.name()
			}
		}
		c = append(c, "--node", node)
		if c[0] == "init" {
			c = append(append(c, "--adopt-root", dir), flags...)
		}
		switch {
		case c[0] == "init" && strings.Contains(strings.Join(c, " "), "--yes"):
			stop = b.agent(t, ordinary, filepath.Join(dir, "out"), c...)
			b.waitPrimary(t, ordinary, node)
			checkRunning(t, b, dir)
			if !ordinary {
				checkJoin(t, b, dir)
			}
		case c[0] == "status": // just after a secondary was stopped, commits still wait for it
			b.waitPrimary(t, ordinary, node)
		case c[0] == "release":
			if out, code := b.run(ordinary, c...); code != 4 || !strings.Contains(out, "already runs") {
				t.Errorf("release beside a running agent: exit %d:\n%s", code, out)
			}
			stop()
			if !ordinary { // another replica is still in the group
				if out, code := b.run(ordinary, c...); code != 4 || !strings.Contains(out, "coterie member remove n2") {
					t.Errorf("release beside another replica: exit %d:\n%s", code, out)
				}
				stop = b.agent(t, ordinary, filepath.Join(dir, "out"), "agent", "--node", node)
				b.waitPrimary(t, ordinary, node)
				if out, code := b.run(ordinary, "remove", "n2", "--yes", "--node", node); code != 0 {
					t.Fatalf("remove: exit %d:\n%s", code, out)
				}
				waitForgotten(t, filepath.Join(node, "state", "group.json"), `"n2"`)
				stop()
			}
			if out, code := b.run(ordinary, c...); code != 0 || !strings.Contains(out, "pg_ctlcluster "+strings.Replace(b.name(), "/", " ", 1)+" start") {
				t.Fatalf("%v: exit %d:\n%s", c, code, out)
			}
		default:
			if out, code := b.run(ordinary, c...); code != 0 {
				t.Fatalf("%v: exit %d:\n%s", c, code, out)
			}
		}
	}
	checkReleased(t, b, dir, string(autoWas))
	if systemctl != "" {
		unit := "postgresql@" + strings.Replace(b.name(), "/", "-", 1) + ".service\n"
		if got, _ := os.ReadFile(systemctl); string(got) != "mask -- "+unit+"unmask -- "+unit {
			t.Errorf("systemctl was called with %q", got)
		}
	}
}

// waitForgotten waits until the agent has recorded that the group is smaller.
func waitForgotten(t *testing.T, file, name string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if b, err := os.ReadFile(file); err == nil && !strings.Contains(string(b), name) {
			return
		}
	}
	t.Fatalf("%s still names %s", file, name)
}

// fakeSystemd makes dir look as if systemd ran there, and returns the file that records the calls of systemctl.
func fakeSystemd(t *testing.T, b *bench, dir string) (calls string) {
	t.Helper()
	calls = filepath.Join(dir, "systemctl.calls")
	b.write(t, filepath.Join(dir, "run/systemd/system/x"), "")
	b.write(t, filepath.Join(dir, "lib/systemd/system/postgresql@.service"), "[Service]\n")
	script := filepath.Join(dir, "bin", "systemctl")
	b.write(t, script, "#!/bin/sh\n[ $(id -u) = 0 ] && echo \"$@\" >>"+calls+"\n")
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Dir(script)+":"+os.Getenv("PATH"))
	return calls
}

// checkJoin adds a second node. It receives the data and also the settings, although postgresql.conf is outside the
// data directory.
func checkJoin(t *testing.T, b *bench, dir string) {
	t.Helper()
	out, code := b.run(false, "token", "create", "--node", filepath.Join(dir, "node"))
	i := strings.Index(out, "coterie1.")
	if code != 0 || i < 0 {
		t.Fatalf("exit %d:\n%s", code, out)
	}
	token := strings.Fields(out[i:])[0]
	joiner := filepath.Join(dir, "joiner")
	if err := errors.Join(os.Mkdir(joiner, 0o700), os.Chown(joiner, b.uid, b.gid)); err != nil {
		t.Fatal(err)
	}
	readOnly := ports.Address(t)
	stop := b.agent(t, false, filepath.Join(joiner, "out"), "join", token, "--node", filepath.Join(joiner, "node"), "--name", "n2", "--superuser", "dba",
		"--endpoint", ports.Address(t), "--read-write", ports.Address(t), "--read-only", readOnly, "--http", ports.Address(t))
	defer stop()
	var got string
	err := errors.New("not tried")
	for end := time.Now().Add(2 * time.Minute); err != nil && time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		var conn *pgx.Conn
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if conn, err = pgx.Connect(ctx, fmt.Sprintf("postgres://app:old%%20secret@%s/postgres", readOnly)); err == nil {
			// Until the copy exists, the port leads to the primary.
			err = conn.QueryRow(ctx, "SELECT current_setting('maintenance_work_mem') || ' ' || current_setting('work_mem') || ' ' || count(*) FROM t WHERE pg_is_in_recovery() AND g > 0").Scan(&got)
			if err == nil && strings.HasSuffix(got, " 0") {
				err = errors.New("not a secondary")
			}
			_ = conn.Close(ctx)
		}
		cancel()
	}
	if err != nil || got != "77MB 7MB 1000" {
		t.Errorf("the node that joined says %q, %v", got, err)
	}
}

// checkRunning logs in through the listener with an old password, and checks that data and settings survived.
func checkRunning(t *testing.T, b *bench, dir string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	port := portOf(t, b, dir)
	// The listener took over the old TCP port and the old socket.
	for _, host := range []string{"127.0.0.1", dir} {
		conn, err := pgx.Connect(ctx, fmt.Sprintf("host=%s port=%s user=app password='old secret' dbname=postgres", host, port))
		if err != nil {
			t.Fatal(err)
		}
		for sql, want := range map[string]string{
			"SELECT count(*)::text FROM t WHERE g > 0": "1000", "SHOW work_mem": "7MB", "SHOW maintenance_work_mem": "77MB",
			"SHOW restore_command": "", "SHOW synchronous_standby_names": "", "SELECT session_user::text": "app", "SELECT pg_is_in_recovery()::text": "false",
		} {
			var got string
			if err := conn.QueryRow(ctx, sql).Scan(&got); err != nil || got != want {
				t.Errorf("%s through %s: %q, %v; want %q", sql, host, got, err, want)
			}
		}
		if _, err := conn.Exec(ctx, "INSERT INTO t VALUES (0)"); err != nil {
			t.Error(err)
		}
		_ = conn.Close(ctx)
	}
	if _, err := pgx.Connect(ctx, fmt.Sprintf("host=127.0.0.1 port=%s user=app password=wrong dbname=postgres sslmode=disable", port)); err == nil {
		t.Error("a wrong password was accepted")
	}
	for f, want := range map[string]string{filepath.Join(b.etc(dir), "start.conf"): "# Automatic startup configuration\n\ndisabled\n"} {
		if got, _ := os.ReadFile(f); string(got) != want {
			t.Errorf("%s is %q, want %q", f, got, want)
		}
	}
	if generated, _ := os.ReadFile(filepath.Join(dir, "data", "postgresql.conf")); !strings.Contains(string(generated), "maintenance_work_mem = '") || strings.Contains(string(generated), "data_directory") {
		t.Errorf("the configuration of joining nodes is:\n%s", generated)
	}
	if _, err := os.Lstat(filepath.Join(dir, "data", "standby.signal")); err != nil {
		t.Error("a start by accident would be a primary's: standby.signal is not there")
	}
}

func portOf(t *testing.T, b *bench, dir string) string {
	t.Helper()
	conf, _ := os.ReadFile(filepath.Join(b.etc(dir), "postgresql.conf"))
	_, after, ok := strings.Cut(string(conf), "\nport = ")
	for next := after; ok; { // the last one is in force
		if _, next, ok = strings.Cut(next, "\nport = "); ok {
			after = next
		}
	}
	port, _, _ := strings.Cut(after, "\n")
	return port
}

// checkReleased starts the cluster in the way that its owner did before the adoption.
func checkReleased(t *testing.T, b *bench, dir, autoWas string) {
	t.Helper()
	data := filepath.Join(dir, "data")
	if got, _ := os.ReadFile(filepath.Join(b.etc(dir), "start.conf")); !strings.HasSuffix(string(got), "\nauto\n") {
		t.Errorf("start.conf is %q", got)
	}
	for _, f := range []string{"standby.signal", "coterie.copy", "postgresql.conf"} {
		if _, err := os.Lstat(filepath.Join(data, f)); err == nil {
			t.Errorf("%s was left in the data directory", f)
		}
	}
	auto, _ := os.ReadFile(filepath.Join(data, "postgresql.auto.conf"))
	for line := range strings.Lines(autoWas) {
		if !strings.Contains(string(auto), line) {
			t.Errorf("postgresql.auto.conf lost %q; it is\n%s", line, auto)
		}
	}
	if out, code := b.server("pg_ctl", "start", "-w", "-D", data, "-l", filepath.Join(dir, "log"), "-o", "-c config_file="+filepath.Join(b.etc(dir), "postgresql.conf")); code != 0 {
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		t.Fatalf("the released cluster does not start: %s\n%s", out, log)
	}
	out, code := b.server("psql", "-X", "-At", "-h", dir, "-p", portOf(t, b, dir), "-U", "dba", "-d", "postgres", "-c", "SELECT count(*), pg_is_in_recovery() FROM t")
	if code != 0 || strings.TrimSpace(out) != "1002|f" {
		t.Errorf("the released cluster says %q", out)
	}
	if out, code := b.server("pg_ctl", "stop", "-w", "-m", "fast", "-D", data); code != 0 {
		t.Error(out)
	}
}
