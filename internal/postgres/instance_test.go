package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/login"
	"github.com/coteriedb/coterie/internal/postgres/pgfiles"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// newPrimary makes a cluster and starts it. With configApart its postgresql.conf is not in the data directory, as
// Debian's.
func newPrimary(t *testing.T, configApart bool) *server {
	t.Helper()
	p := newServer(t, nil, "")
	if err := p.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if configApart {
		p.cfg.Load().ConfigFile = filepath.Join(p.dir, "postgresql.conf")
		if err := os.Rename(p.path("postgresql.conf"), p.cfg.Load().ConfigFile); err != nil {
			t.Fatal(err)
		}
	}
	p.start(true)
	return p
}

func TestPrimary(t *testing.T) {
	p := newPrimary(t, false)
	t.Run("init refuses a directory in use", func(t *testing.T) {
		if err := p.Init(t.Context()); err == nil || !strings.Contains(err.Error(), "not empty") {
			t.Errorf("Init of a cluster: %v", err)
		}
	})
	t.Run("observation", func(t *testing.T) {
		o, c := p.observe(), control(t, p)
		if o.InRecovery || o.Timeline != 1 || o.Flush == 0 || o.Insert < o.Flush || o.WalReceiver != nil || len(o.Replication) > 0 ||
			o.SyncNames != "" || o.ServerVersion != p.cfg.Load().Install.Num || time.Since(o.PostmasterStart) > time.Hour {
			t.Errorf("observation of a new primary: %+v", o)
		}
		if !c.DataChecksums || c.Timeline != 1 || c.State != "in production" || c.SystemID == "" {
			t.Errorf("pg_control of a new primary: %+v", c)
		}
	})
	sub(t, "arguments", func(t *testing.T) { testArgs(t, p) }, p)
	sub(t, "sync", func(t *testing.T) { testSync(t, p) }, p)
	sub(t, "slots", func(t *testing.T) { testSlots(t, p) }, p)
	sub(t, "roles", func(t *testing.T) { testRoles(t, p) }, p)
	sub(t, "cancelling by SQL", func(t *testing.T) { testRestrictCancel(t, p) }, p)
	sub(t, "settings of the log", func(t *testing.T) { testLogSettings(t, p) }, p)
	sub(t, "defaults of roles", func(t *testing.T) { testDefaults(t, p) }, p)
	sub(t, "what a session begins with", func(t *testing.T) { testMark(t, p) }, p)
	sub(t, "flushed now", func(t *testing.T) { testCurrentFlush(t, p) }, p)
	sub(t, "a fresh segment", func(t *testing.T) { testFreshSegment(t, p) }, p)
	sub(t, "end of WAL after a crash", func(t *testing.T) { testEndOfWAL(t, p) }, p)
	sub(t, "a copy without WAL", func(t *testing.T) { testMissingRedo(t, p) }, p)
	sub(t, "foreign ALTER SYSTEM", func(t *testing.T) { testForeignSettings(t, p) }, p)
}

// A segment that has just begun is continued; any other is left for the next.
func testFreshSegment(t *testing.T, p *server) {
	const segment = 16 << 20
	p.sql("CREATE TABLE filler AS SELECT md5(g::text) FROM generate_series(1, 30000) g")
	if used := p.observe().Flush % segment; used <= freshSegment {
		t.Fatalf("%s is at the beginning of a segment", p.observe().Flush)
	}
	began, err := p.FreshSegment(t.Context())
	if err != nil || began%segment > freshSegment || p.observe().Flush < began {
		t.Fatalf("a segment at %s, %v; flushed %s", began, err, p.observe().Flush)
	}
	if again, err := p.FreshSegment(t.Context()); err != nil || again != 0 {
		t.Errorf("and another at %s, %v", again, err)
	}
}

func testArgs(t *testing.T, p *server) {
	has := func(i *Instance, name string) string {
		args := i.Args()
		for k, a := range args {
			if v, ok := strings.CutPrefix(a, name+"="); ok && args[k-1] == "-c" {
				return v
			}
		}
		return "absent"
	}
	c := p.Config()
	c.Extra = map[string]string{"wal_keep_size": "1GB", "port": "6000", "max_replication_slots": "50"}
	i := New(c)
	for name, want := range map[string]string{
		"wal_keep_size": "1GB", "port": "5432", "max_replication_slots": "50", "max_wal_senders": "20",
		"max_connections": "absent", "wal_level": "absent", "synchronous_standby_names": "absent", "wal_log_hints": "absent", "restart_after_crash": "off",
	} {
		if got := has(i, name); got != want {
			t.Errorf("%s is %s on the command line, want %s", name, got, want)
		}
	}
	conf, err := os.OpenFile(p.path("postgresql.conf"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer conf.Close()
	if _, err := conf.WriteString("max_wal_senders = 30\nwal_level = minimal\nmax_connections = 50\n"); err != nil {
		t.Fatal(err)
	}
	// The copy was written by a primary with 100 connections.
	for name, want := range map[string]string{"max_wal_senders": "absent", "wal_level": "replica", "max_connections": "100"} {
		if got := has(i, name); got != want {
			t.Errorf("%s is %s on the command line, want %s", name, got, want)
		}
	}
}

func control(t *testing.T, s *server) pgfiles.Control {
	t.Helper()
	c, err := s.Control(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func testSync(t *testing.T, p *server) {
	ctx := t.Context()
	want := settings.Sync{Names: []string{settings.Application("n2", 7), settings.Application("n3", 7)}, Num: 1}
	if err := p.SetSync(ctx, want); err != nil {
		t.Fatal(err)
	}
	got, source, err := p.SyncInForce(ctx)
	if err != nil || !got.Equal(want) || source != p.autoConf() {
		t.Errorf("in force: %v from %s, %v; want %v", got, source, err, want)
	}
	done, pid, err := p.ProbeCommit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p.waitFor("the probe to wait", func(ctx context.Context) error {
		if p.WaitingInSyncRep(ctx, pid) && p.observe().SyncRepWaiters == 1 {
			return nil
		}
		return errors.New("it does not wait")
	})
	if err := p.SetSync(ctx, settings.Sync{}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the probe was released and says %v", err)
	}
	if p.WaitingInSyncRep(ctx, pid) {
		t.Error("a session that ended waits")
	}

	// A cancelled wait is not a confirmation, although the server reports the commit as done.
	if err := p.SetSync(ctx, want); err != nil {
		t.Fatal(err)
	}
	if done, pid, err = p.ProbeCommit(ctx); err != nil {
		t.Fatal(err)
	}
	p.waitFor("the probe to be cancelled", func(ctx context.Context) error {
		p.sql(fmt.Sprintf("SELECT pg_cancel_backend(%d)", pid))
		select {
		case err := <-done:
			if err == nil {
				t.Error("a cancelled probe counts as confirmed")
			}
			return nil
		default:
			return errors.New("it still waits")
		}
	})
	if err := p.SetSync(ctx, settings.Sync{}); err != nil {
		t.Fatal(err)
	}
}

func testSlots(t *testing.T, p *server) {
	ctx := t.Context()
	p.sql("SELECT pg_create_physical_replication_slot('cot_seed_1', true), pg_create_physical_replication_slot('mine')")
	names := func() (names []string) {
		for _, s := range p.observe().Slots {
			names = append(names, s.Name)
		}
		return names
	}
	for _, want := range [][]string{{"cot_n2", "cot_n3"}, {"cot_n3"}, nil} {
		for range 2 {
			if err := p.EnsureSlots(ctx, want, nil); err != nil {
				t.Fatal(err)
			}
			all := append([]string{"cot_seed_1", "mine"}, want...)
			slices.Sort(all)
			if diff := cmp.Diff(all, names()); diff != "" {
				t.Errorf("slots after wanting %v (-want +got):\n%s", want, diff)
			}
		}
	}
	// One that cannot be made does not keep the others from it, and each is named.
	err := p.EnsureSlots(ctx, []string{"cot_N2", "cot_n3", "cot_N4", "cot_n5"}, nil)
	if err == nil || !strings.Contains(err.Error(), "cot_N2") || !strings.Contains(err.Error(), "cot_N4") || strings.Contains(err.Error(), "cot_n5") {
		t.Errorf("slots whose names PostgreSQL does not take: %v", err)
	}
	if diff := cmp.Diff([]string{"cot_n3", "cot_n5", "cot_seed_1", "mine"}, names()); diff != "" {
		t.Errorf("slots beside those that cannot be made (-want +got):\n%s", diff)
	}
	if err := p.EnsureSlots(ctx, nil, nil); err != nil {
		t.Error(err)
	}
	p.sql("SELECT pg_drop_replication_slot('cot_seed_1'), pg_drop_replication_slot('mine')")
}

func testRoles(t *testing.T, p *server) {
	key := strings.Repeat("A", 43) + "="
	p.sql("CREATE ROLE staff", "CREATE ROLE ops IN ROLE staff",
		"CREATE ROLE alice LOGIN REPLICATION PASSWORD 'x' VALID UNTIL '2001-02-03 04:05:06+00' CONNECTION LIMIT 3 IN ROLE ops",
		// Most roles have 20,000 rounds.
		"CREATE ROLE r1 LOGIN PASSWORD 'SCRAM-SHA-256$20000:"+key[:22]+"==$"+key+":"+key+"'", "CREATE ROLE r2 LOGIN PASSWORD 'SCRAM-SHA-256$20000:"+key[:22]+"==$"+key+":"+key+"'",
		"CREATE ROLE bob LOGIN VALID UNTIL 'infinity'", "CREATE ROLE carol VALID UNTIL '-infinity'")
	a, err := p.Verifier(t.Context(), "alice")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(a.Password, "SCRAM-SHA-256$") {
		t.Errorf("alice's verifier is %q", a.Password)
	}
	until := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	if a.ValidUntil == nil || !a.ValidUntil.Equal(until) {
		t.Errorf("alice is valid until %v, want %v", a.ValidUntil, until)
	}
	a.Password, a.ValidUntil = "", nil
	if diff := cmp.Diff(login.Role{Name: "alice", CanLogin: true, Replication: true, ConnLimit: 3, MemberOf: []string{"ops", "staff"}, Rounds: 20000}, a); diff != "" {
		t.Errorf("alice (-want +got):\n%s", diff)
	}
	if b, err := p.Verifier(t.Context(), "bob"); err != nil || b.ValidUntil != nil || b.Password != "" {
		t.Errorf("bob: %+v, %v", b, err)
	}
	if c, err := p.Verifier(t.Context(), "carol"); err != nil || c.ValidUntil == nil || c.CanLogin {
		t.Errorf("carol: %+v, %v", c, err)
	}
	if r, err := p.Verifier(t.Context(), "nobody; DROP ROLE alice"); !errors.Is(err, login.ErrNoRole) || r.Rounds != 20000 {
		t.Errorf("a role that is not there: %+v, %v", r, err)
	}
}

// testEndOfWAL crashes the server at several kinds of ends and compares the end that the files show with the flushed
// one.
func testEndOfWAL(t *testing.T, p *server) {
	for _, c := range []struct{ name, sql string }{
		{"rows", "CREATE TABLE t AS SELECT g, repeat('x', 300) AS pad FROM generate_series(1, 3000) g"},
		{"a record over many pages", "SELECT pg_logical_emit_message(true, 'test', repeat('y', 300000))"},
		{"an ended segment", "SELECT pg_switch_wal()"},
		{"a checkpoint", "CHECKPOINT"},
	} {
		p.sql(c.sql)
		var flushed ag.LSN
		p.waitFor("WAL to be flushed", func(context.Context) error {
			o := p.observe()
			// After an ended segment the server counts the next page's header as inserted already.
			if flushed = o.Flush; o.Insert > o.Flush+pgfiles.LongPageHeader {
				return fmt.Errorf("%s inserted, %s flushed", o.Insert, o.Flush)
			}
			return nil
		})
		p.kill(syscall.SIGQUIT)
		end, err := p.EndOfWAL(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if want := (ag.Position{Timeline: 1, LSN: flushed}); end != want {
			t.Errorf("%s: the files end at %s, the server had flushed %s", c.name, end, want)
		}
		p.start(true)
		if now, err := p.EndOfWAL(t.Context()); err != nil || now.LSN < end.LSN {
			t.Errorf("%s: running, WAL ends at %s, %v", c.name, now, err)
		}
	}
}

// testMissingRedo starts a new copy whose source no longer has the WAL with which its recovery begins. The copy has no
// position, and says where it begins.
func testMissingRedo(t *testing.T, p *server) {
	if _, missing, err := p.MissingRedo(t.Context()); missing || err != nil {
		t.Errorf("a primary: %t, %v", missing, err)
	}
	before := p.observe().Flush
	c := p.clone("cot_none")
	if _, missing, err := c.MissingRedo(t.Context()); missing || err != nil {
		t.Errorf("a copy with its WAL: %t, %v", missing, err)
	}
	files, err := filepath.Glob(c.path("pg_wal", strings.Repeat("[0-9A-F]", 24)))
	if err != nil || len(files) == 0 {
		t.Fatalf("the copy has no WAL: %v", err)
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	c.launch(false)
	defer c.kill(syscall.SIGQUIT)
	for range 2 { // also once the server runs
		if end, err := c.EndOfWAL(t.Context()); err == nil {
			t.Errorf("its WAL ends at %s", end)
		}
		if at, missing, err := c.MissingRedo(t.Context()); !missing || at < before || at > p.observe().Flush || err != nil {
			t.Errorf("it needs WAL from %s on, %t, %v", at, missing, err)
		}
		c.waitFor("the server to start", func(context.Context) error {
			_, err := os.Stat(c.path("postmaster.pid"))
			return err
		})
	}
}

func testForeignSettings(t *testing.T, p *server) {
	p.sql("ALTER SYSTEM SET work_mem = '7MB'", "ALTER SYSTEM SET primary_conninfo = 'host=elsewhere'",
		"ALTER SYSTEM SET recovery_min_apply_delay = '1h'", "ALTER SYSTEM SET port = 6000", "ALTER SYSTEM SET synchronous_standby_names = 'x'")
	if o := p.observe(); o.InRecovery || o.SyncWritten != "x" || !o.IsWritten || o.SyncNames == "x" {
		t.Errorf("a setting that waits for a reload: in force %q, written %q", o.SyncNames, o.SyncWritten)
	}
	p.sql("ALTER SYSTEM RESET ALL")
	if o := p.observe(); o.IsWritten {
		t.Errorf("after RESET ALL %q is written", o.SyncWritten)
	}
	p.sql("ALTER SYSTEM SET work_mem = '7MB'", "ALTER SYSTEM SET primary_conninfo = 'host=elsewhere'",
		"ALTER SYSTEM SET recovery_min_apply_delay = '1h'", "ALTER SYSTEM SET port = 6000", "ALTER SYSTEM SET synchronous_standby_names = 'x'")
	p.kill(syscall.SIGINT)
	p.start(true)
	if got := p.value("SHOW port"); got != "5432" {
		t.Errorf("port %s: a file won over the command line", got)
	}
	if got := p.value("SHOW work_mem"); got != "7MB" {
		t.Errorf("work_mem %s: the administrator's setting was lost", got)
	}
	if got := p.value("SHOW synchronous_standby_names"); got != "" {
		t.Errorf("synchronous_standby_names %q survived the start", got)
	}
	testSettings(t, p)
	testReservedSettings(t, p)
	testPendingRestart(t, p)
	b, err := os.ReadFile(p.autoConf())
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"primary_conninfo", "recovery_min_apply_delay", "synchronous_standby_names"} {
		if strings.Contains(string(b), gone) {
			t.Errorf("postgresql.auto.conf still has %s:\n%s", gone, b)
		}
	}
	// Settings that the agent itself wrote are kept over a restart.
	own := settings.Sync{Names: []string{settings.Application("n2", 9)}, Num: 1}
	if err := p.SetSync(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	p.kill(syscall.SIGINT)
	p.start(true)
	if got, _, err := p.SyncInForce(t.Context()); err != nil || !got.Equal(own) {
		t.Errorf("after a restart %v is in force, %v; want %v", got, err, own)
	}
}

// testSettings checks the settings that are compared with other replicas, on a server whose work_mem was changed.
func testSettings(t *testing.T, p *server) {
	found, err := p.Settings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Setting{}
	for _, s := range found {
		if _, twice := got[s.Name]; twice {
			t.Errorf("%s twice", s.Name)
		}
		got[s.Name] = s
	}
	for name, want := range map[string]Setting{
		"work_mem":                 {"work_mem", "7MB", "configuration file", false},
		"statement_timeout":        {"statement_timeout", "0", "default", false}, // the agent's session has its own
		"shared_preload_libraries": {"shared_preload_libraries", "", "default", false},
		"primary_slot_name":        {}, // differs between nodes by nature
		"ssl_passphrase_command":   {}, // visible to superusers only
		"data_directory":           {},
	} {
		if got[name] != want {
			t.Errorf("%s: %+v, want %+v", name, got[name], want)
		}
	}
	if len(got) < 200 || got["max_connections"].Value == "" {
		t.Errorf("%d settings: %+v", len(got), got["max_connections"])
	}
}

// A setting waits for a restart if its other value in a file is in force then: not if the command line overrides it.
func testPendingRestart(t *testing.T, p *server) {
	p.sql("ALTER SYSTEM SET max_locks_per_transaction = 123", "ALTER SYSTEM SET listen_addresses = '127.0.0.9'", "SELECT pg_reload_conf()")
	defer p.sql("ALTER SYSTEM RESET max_locks_per_transaction", "ALTER SYSTEM RESET listen_addresses", "SELECT pg_reload_conf()")
	waits := func(name string) bool {
		found, err := p.Settings(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(found, func(s Setting) bool { return s.Name == name })
		return i >= 0 && found[i].Pending
	}
	for end := time.Now().Add(time.Minute); !waits("max_locks_per_transaction"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("max_locks_per_transaction does not wait for a restart")
		}
	}
	if waits("listen_addresses") {
		t.Error("listen_addresses waits for a restart, which does not change it")
	}
}

// Defaults of synchronous_commit, and entries of settings that belong to the group, are among the settings.
func testReservedSettings(t *testing.T, p *server) {
	p.sql("ALTER ROLE postgres IN DATABASE template1 SET synchronous_commit = off", "ALTER DATABASE template1 SET synchronous_commit = local",
		"ALTER ROLE ALL SET synchronous_commit = remote_write", "ALTER SYSTEM SET restore_command = 'cp'", "ALTER SYSTEM SET primary_conninfo = 'password=secret'")
	defer p.sql("ALTER ROLE postgres IN DATABASE template1 RESET synchronous_commit", "ALTER DATABASE template1 RESET synchronous_commit",
		"ALTER ROLE ALL RESET synchronous_commit", "ALTER SYSTEM RESET restore_command", "ALTER SYSTEM RESET primary_conninfo")
	found, err := p.Settings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"synchronous_commit of role postgres in database template1": "off", "synchronous_commit of database template1": "local",
		"synchronous_commit of all roles": "remote_write", "restore_command written in " + p.autoConf(): "cp",
		"primary_conninfo written in " + p.autoConf(): "", // the value is for superusers only
	} {
		if i := slices.IndexFunc(found, func(s Setting) bool { return s.Name == name }); i < 0 || found[i].Value != want {
			t.Errorf("%s is not %s among the settings", name, want)
		}
	}
}
