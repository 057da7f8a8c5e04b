package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/postgres/session"
)

// limitOf returns what the views show of a setting: the value, why the server keeps it, and whether a restart is
// waited for.
func limitOf(t *testing.T, s *server, name string) string {
	t.Helper()
	found, err := s.Settings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(found, func(x Setting) bool { return x.Name == name })
	if i < 0 {
		return "none"
	}
	out := found[i].Value
	if strings.HasPrefix(found[i].Source, "kept") {
		out += " " + found[i].Source
	}
	if found[i].Pending {
		out += ", pending"
	}
	return out
}

// again restarts a server in order, or after a crash.
func (s *server) again(primary bool, sig syscall.Signal) {
	s.t.Helper()
	s.kill(sig)
	s.start(primary)
}

func (s *server) pauses() {
	s.t.Helper()
	s.waitFor("replay to pause", func(ctx context.Context) error {
		if o, err := s.Observe(ctx); err != nil || !o.ReplayPaused {
			return errors.Join(err, errors.New("it goes on"))
		}
		return nil
	})
}

// TestLimits lowers and raises settings of which a standby needs as much as its primary, in an order that is right and
// in those that are not. No server stops replaying for longer than until its next start, and each starts.
func TestLimits(t *testing.T) {
	p := newPrimary(t, false)
	set := func(s *server, connections, workers, prepared int) {
		t.Helper()
		for name, n := range map[string]int{"max_connections": connections, "max_worker_processes": workers, "max_prepared_transactions": prepared} {
			s.sql(fmt.Sprintf("ALTER SYSTEM SET %s = %d", name, n))
		}
		s.sql("SELECT pg_reload_conf()")
	}
	is := func(s *server, what, connections, workers, prepared string) {
		t.Helper()
		s.waitFor(what, func(context.Context) error {
			got := []string{limitOf(t, s, "max_connections"), limitOf(t, s, "max_worker_processes"), limitOf(t, s, "max_prepared_transactions")}
			if !slices.Equal(got, []string{connections, workers, prepared}) {
				return fmt.Errorf("%q", got)
			}
			return nil
		})
	}
	follows := func(s, from *server) {
		t.Helper()
		from.sql("INSERT INTO t VALUES (0)") // after its start a walreceiver reports what it receives anew
		s.streams(from)
	}
	set(p, 150, 16, 20)
	p.again(true, syscall.SIGINT)
	is(p, "the first values", "150", "16", "20")
	p.sql("CHECKPOINT", "CREATE TABLE t (v int)")
	s, third := p.clone("cot_n2"), p.clone("cot_n3")
	if err := p.EnsureSlots(t.Context(), []string{"cot_n2", "cot_n3"}, nil); err != nil {
		t.Fatal(err)
	}
	s.start(false)
	third.start(false)
	follows(s, p)
	follows(third, p)

	// WAL of a primary that has more than the one after it: a smaller server has no room for its prepared transactions.
	for n := range 12 {
		p.sql("BEGIN", fmt.Sprintf("INSERT INTO t VALUES (%d)", n), fmt.Sprintf("PREPARE TRANSACTION 'p%d'", n))
	}
	set(p, 120, 24, 2)
	set(s, 120, 24, 2)
	set(third, 120, 24, 2)
	is(p, "what waits on the primary", "150 kept while there are prepared transactions, pending", "16, pending", "20 kept while there are prepared transactions, pending")
	p.again(true, syscall.SIGINT)
	is(p, "only what is raised on a primary with prepared transactions", "150 kept while there are prepared transactions, pending", "24",
		"20 kept while there are prepared transactions, pending")
	third.pauses()
	if why := third.observe().Short; !strings.Contains(why, "max_worker_processes") || strings.Contains(why, "max_connections") {
		t.Errorf("why replay is paused: %q", why)
	}
	s.pauses()
	s.again(false, syscall.SIGINT)
	third.again(false, syscall.SIGQUIT)
	follows(s, p)
	follows(third, p)
	is(s, "a secondary that may not be lower yet", "150 kept while the primary has 150, pending", "24", "20 kept while the primary has 20, pending")
	for n := range 12 {
		p.sql(fmt.Sprintf("COMMIT PREPARED 'p%d'", n))
	}
	is(p, "what waits for the restart of the primary", "150 kept until a restart, pending", "24", "20 kept until a restart, pending")
	p.again(true, syscall.SIGQUIT)
	is(p, "a primary that crashed keeps what its WAL may need", "150 kept until a restart, pending", "24", "20 kept until a restart, pending")
	p.again(true, syscall.SIGINT)
	is(p, "the primary first", "120", "24", "2")
	follows(s, p)
	follows(third, p)
	is(s, "what waits for the restart of a secondary", "150 kept until a restart, pending", "24", "20 kept until a restart, pending")

	// The WAL that a secondary replays first is older than the values of pg_control.
	s.again(false, syscall.SIGQUIT)
	follows(s, p)
	is(s, "a secondary whose WAL may need more", "150 kept until a restart, pending", "24", "20 kept until a restart, pending")
	fresh := third.clone("cot_n4")
	p.sql("CHECKPOINT", "INSERT INTO t VALUES (-1)")
	follows(s, p)
	s.again(false, syscall.SIGINT)
	follows(s, p)
	is(s, "the secondary", "120", "24", "2")
	s.again(false, syscall.SIGQUIT)
	follows(s, p)
	is(s, "the secondary after a crash", "120", "24", "2")

	// A copy from a secondary has the WAL of then, and what that secondary had.
	fresh.Config().Extra["max_wal_size"] = "64MB"
	fresh.start(false)
	is(fresh, "a copy from a secondary", "150 kept until a restart, pending", "24", "20 kept until a restart, pending")

	// The secondary that still has more is promoted: the other one pauses until it starts again with as much.
	p.kill(syscall.SIGINT)
	if _, _, err := third.Promote(t.Context(), 2, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := third.EnsureSlots(t.Context(), []string{"cot_n2"}, nil); err != nil {
		t.Fatal(err)
	}
	third.sql("INSERT INTO t VALUES (-2)")
	c := s.Config()
	s.kill(syscall.SIGINT)
	c.UpstreamDir = third.Config().SocketDir
	s.cfg.Store(&c)
	s.start(false)
	s.pauses()
	if why := s.observe().Short; !strings.Contains(why, "max_connections") {
		t.Errorf("why replay is paused: %q", why)
	}
	if _, _, err := s.Promote(t.Context(), 3, 5*time.Second); err == nil {
		t.Error("a server that has too little was promoted")
	}
	s.kill(syscall.SIGINT)
	s.start(false)
	follows(s, third)
	is(s, "the follower of a server that has more", "150 kept while the primary has 150, pending", "24", "20 kept while the primary has 20, pending")
}

// TestRewindWithFormerLimits holds that a copy is recovered and rewound with what its server had. The files say less
// already, as does the source, and the WAL since the last common checkpoint has more prepared transactions than that.
func TestRewindWithFormerLimits(t *testing.T) {
	ctx := t.Context()
	p := newPrimary(t, false)
	lower := func(s *server) { s.sql("ALTER SYSTEM SET max_prepared_transactions = 2", "SELECT pg_reload_conf()") }
	p.sql("ALTER SYSTEM SET max_prepared_transactions = 20")
	p.again(true, syscall.SIGINT)
	p.sql("CREATE TABLE t (v int)")
	if err := p.EnsureSlots(ctx, []string{"cot_n2"}, nil); err != nil {
		t.Fatal(err)
	}
	s := p.clone("cot_n2")
	s.start(false)
	s.streams(p)
	for n := range 12 {
		p.sql("BEGIN", fmt.Sprintf("INSERT INTO t VALUES (%d)", n), fmt.Sprintf("PREPARE TRANSACTION 'p%d'", n))
	}
	s.streams(p)
	if _, _, err := s.Promote(ctx, 2, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	lower(p)
	p.sql("INSERT INTO t VALUES (-1)")
	p.kill(syscall.SIGQUIT)

	for n := range 12 {
		s.sql(fmt.Sprintf("COMMIT PREPARED 'p%d'", n))
	}
	lower(s)
	if err := s.EnsureSlots(ctx, []string{"cot_n1"}, nil); err != nil {
		t.Fatal(err)
	}
	s.again(true, syscall.SIGINT)
	if got := limitOf(t, s, "max_prepared_transactions"); got != "2" {
		t.Fatalf("the source has %s", got)
	}
	source := fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres", s.cfg.Load().SocketDir, session.Port)
	if err := p.Rewind(ctx, RewindOptions{SourceConninfo: source}); err != nil {
		t.Fatal(err)
	}
	c := p.Config()
	c.UpstreamDir, c.Slot = s.Config().SocketDir, "cot_n1"
	p.cfg.Store(&c)
	p.start(false)
	s.sql("INSERT INTO t VALUES (12)")
	p.streams(s)
	if got := p.value("SELECT count(*)::text FROM t WHERE v >= 0"); got != "13" {
		t.Errorf("the rewound copy has %s rows", got)
	}
}
