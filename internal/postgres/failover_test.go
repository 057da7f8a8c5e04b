package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/pgfiles"
	"github.com/coteriedb/coterie/internal/postgres/session"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// streams waits until the secondary has everything the primary flushed.
func (s *server) streams(from *server) {
	s.t.Helper()
	target := from.observe().Flush
	s.waitFor("the secondary to catch up", func(ctx context.Context) error {
		o, err := s.Observe(ctx)
		if err == nil && (o.WalReceiver == nil || o.Receive < target || o.Replay < target) {
			err = fmt.Errorf("at %s of %s, receiver %+v", o.Replay, target, o.WalReceiver)
		}
		return err
	})
}

// TestFailover is the life of a small group of three. A secondary is promoted to a chosen timeline and the third
// follows it; the old primary has diverged and is rewound.
func TestFailover(t *testing.T) {
	ctx := t.Context()
	p := newPrimary(t, true)
	p.sql("CREATE TABLE t (v int)", "INSERT INTO t VALUES (1)", "CREATE TABLE big AS SELECT g FROM generate_series(1, 20000) g")
	if err := p.EnsureSlots(ctx, []string{"cot_n2", "cot_n3"}, nil); err != nil {
		t.Fatal(err)
	}
	s, third := p.clone("cot_n2"), p.clone("cot_n3")
	s.start(false)
	third.start(false)
	s.streams(p)
	third.streams(p)
	sub(t, "secondary", func(t *testing.T) { testSecondary(t, p, s) }, p, s)
	sub(t, "idle walsenders", func(t *testing.T) { testIdleWalsenders(t, p, s) }, p, s)
	sub(t, "conflicts", func(t *testing.T) { testConflicts(t, p, s) }, p, s)
	sub(t, "replay behind", func(t *testing.T) { testReplayBehind(t, p, s) }, p, s)
	sub(t, "torn", func(t *testing.T) { testTorn(t, p, s) }, p, s)
	s.streams(p)
	third.streams(p)
	third.kill(syscall.SIGQUIT)
	common := p.observe().Flush
	interruptPromotion(t, s)
	s.streams(p)
	next, err := strconv.ParseUint(p.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	s.receivesOnly(p, "CREATE TABLE received ()") // under that number, or a higher one

	end, xids, err := s.Promote(ctx, 5, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if xids.Kept <= next || xids.Lost < xids.Kept {
		t.Errorf("numbers of transactions at the promotion: %+v; the secondary has that of %d", xids, next)
	}
	if o := s.observe(); o.InRecovery || o.Timeline != 5 || end <= common || o.Flush < end {
		t.Fatalf("promoted at %s: %+v", end, o)
	}
	if again, xids, err := s.Promote(ctx, 5, 30*time.Second); err != nil || again < end || xids.Kept != 0 {
		t.Errorf("promoting again: %s, %v", again, err)
	}
	if _, _, err := s.Promote(ctx, 6, 30*time.Second); !errors.Is(err, ErrTimeline) {
		t.Errorf("promoting a primary to another timeline: %v", err)
	}
	h, err := s.History(ctx, 5)
	if diff := cmp.Diff([]ag.TimelineEntry{{TLI: 5, Parent: 1, Switch: h[0].Switch}}, h); err != nil || diff != "" || h[0].Switch < common {
		t.Errorf("history of timeline 5: %v, %v", h, err)
	}
	s.kill(syscall.SIGQUIT)
	if got, err := s.EndOfWAL(ctx); err != nil || got.Timeline != 5 || got.LSN < end {
		t.Errorf("crashed before the first checkpoint on its timeline: the files end at %s, %v", got, err)
	}
	s.start(true)
	s.sql("INSERT INTO t VALUES (2)")
	p.sql("INSERT INTO t VALUES (-1)", "UPDATE big SET g = -g", "SELECT pg_switch_wal()", "INSERT INTO t VALUES (-2)")
	p.kill(syscall.SIGQUIT)
	sub(t, "checksums", func(t *testing.T) { testChecksums(t, p, s, h[0].Switch) }, p, s)
	sub(t, "follow the new timeline", func(t *testing.T) { testFollow(t, s, third) }, s, third)
	sub(t, "rewind", func(t *testing.T) { testRewind(t, p, s, h[0].Switch) }, p, s)
}

// receivesOnly pauses the replay of the secondary, and waits until it has received what the commands make on the
// primary.
func (s *server) receivesOnly(p *server, commands ...string) (target ag.LSN) {
	s.t.Helper()
	s.sql("SELECT pg_wal_replay_pause()")
	s.waitFor("replay to pause", func(context.Context) error {
		if got := s.value("SELECT pg_get_wal_replay_pause_state()"); got != "paused" {
			return errors.New(got)
		}
		return nil
	})
	p.sql(commands...)
	target = p.observe().Flush
	s.waitFor("all to be received", func(context.Context) error {
		if o := s.observe(); o.Receive < target || o.Replay >= target {
			return fmt.Errorf("received %s, replayed %s, want %s", o.Receive, o.Replay, target)
		}
		return nil
	})
	return target
}

// interruptPromotion leaves the state of an agent that died between marking skipped timelines and promoting.
func interruptPromotion(t *testing.T, s *server) {
	t.Helper()
	if err := s.skipTo(1, 9); err != nil {
		t.Fatal(err)
	}
	s.kill(syscall.SIGINT)
	if !exists(s.historyPath(8)) {
		t.Fatal("timeline 8 is not marked as skipped")
	}
	s.start(false)
	if exists(s.historyPath(2)) {
		t.Error("the mark of timeline 2 is still there")
	}
}

func testSecondary(t *testing.T, p, s *server) {
	o := s.observe()
	if !o.InRecovery || o.Timeline != 1 || o.WalReceiver == nil || o.WalReceiver.Status != "streaming" || o.WalReceiver.Slot != "cot_n2" {
		t.Errorf("observation of a secondary: %+v, receiver %+v", o, o.WalReceiver)
	}
	po := p.observe()
	if len(po.Replication) != 2 || po.Replication[0].Application != "coterie" || po.Replication[0].State != "streaming" || po.Replication[0].Flush == 0 {
		t.Errorf("walsenders: %+v", po.Replication)
	}
	if err := s.SetSync(t.Context(), settings.Sync{Names: []string{settings.Application("n1", 2)}, Num: 1}); err != nil {
		t.Errorf("set synchronous_standby_names in recovery: %v", err)
	}
	if err := s.SetSync(t.Context(), settings.Sync{}); err != nil {
		t.Fatal(err)
	}
	if err := s.EnsureSlots(t.Context(), []string{"cot_n1", "cot_n3"}, nil); err != nil {
		t.Fatal(err)
	}
	testSlotAdvances(t, p, s)
	p.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE application_name = 'coterie'")
	s.streams(p)
	// WAL that a secondary has received is found again after a crash, when its own functions no longer know it.
	// Streamed WAL may end within a record; the end that is found is the end of a record. The two are therefore
	// compared at the end of a record.
	var before ag.Position
	var inserted ag.LSN
	s.waitFor("the secondary to have received whole records", func(ctx context.Context) (err error) {
		if p.observe().Insert != inserted { // it is not waited for what each look would move on
			p.sql("SELECT txid_current()") // flushes what autovacuum has left in memory
			inserted = p.observe().Insert
		}
		if before, err = s.EndOfWAL(ctx); err == nil && before.LSN != inserted {
			err = fmt.Errorf("at %s of %s", before, inserted)
		}
		return err
	})
	s.kill(syscall.SIGQUIT)
	after, err := s.EndOfWAL(t.Context())
	if err != nil || after.Compare(before) < 0 {
		t.Errorf("crashed at %s: the files end at %s, %v", before, after, err)
	}
	s.start(false)
}

// testSlotAdvances holds that a slot of a secondary follows its member, but not beyond the secondary's own
// restartpoint.
func testSlotAdvances(t *testing.T, p, s *server) {
	p.sql("SELECT txid_current()", "CHECKPOINT", "SELECT txid_current()")
	s.streams(p)
	s.sql("CHECKPOINT")
	redo, err := ag.ParseLSN(s.value("SELECT redo_lsn::text FROM pg_control_checkpoint()"))
	if err != nil {
		t.Fatal(err)
	}
	replay := s.observe().Replay
	if redo >= replay {
		t.Fatalf("the restartpoint is at %s, replayed is %s", redo, replay)
	}
	want := []string{"cot_n1", "cot_n3"}
	for _, step := range []struct{ member, slot ag.LSN }{{redo - 1, redo - 1}, {redo, redo}, {replay, redo}} {
		if err := s.EnsureSlots(t.Context(), want, map[string]ag.LSN{"cot_n1": step.member}); err != nil {
			t.Fatal(err)
		}
		for _, slot := range s.observe().Slots {
			if slot.Name == "cot_n1" && slot.Restart != step.slot {
				t.Errorf("the member is at %s and the restartpoint at %s: the slot is %+v", step.member, redo, slot)
			}
		}
	}
}

// testConflicts holds that a long read on the secondary delays replay until PauseConflicts cancels it. The reader gives
// its session the name of the agent's.
func testConflicts(t *testing.T, p, s *server) {
	ctx := t.Context()
	s.sql("ALTER SYSTEM SET max_standby_streaming_delay = '-1'", "SELECT pg_reload_conf()")
	p.sql("CREATE ROLE reader LOGIN", "GRANT SELECT ON t TO reader")
	made := p.observe().Flush
	s.waitFor("the role", func(context.Context) error {
		if o := s.observe(); o.Replay < made {
			return fmt.Errorf("at %s of %s", o.Replay, made)
		}
		return nil
	})
	c, err := s.server.ConnConfig("postgres")
	if err != nil {
		t.Fatal(err)
	}
	c.User = "reader"
	delete(c.RuntimeParams, "session_preload_libraries") // a superuser's to set
	reader, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(reader)
	if _, err := reader.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM public.t"); err != nil {
		t.Fatal(err)
	}
	p.sql("DELETE FROM t WHERE v = 1", "INSERT INTO t VALUES (1)", "VACUUM t")
	target := p.observe().Flush
	s.waitFor("replay to be held up", func(context.Context) error {
		if n := s.value("SELECT count(*)::text FROM pg_stat_activity WHERE wait_event LIKE 'RecoveryConflict%'"); n != "1" {
			return errors.New("it is not")
		}
		return nil
	})
	if err := s.PauseConflicts(ctx); err != nil {
		t.Fatal(err)
	}
	s.waitFor("replay to go on", func(context.Context) error {
		if o := s.observe(); o.Replay < target {
			return fmt.Errorf("at %s of %s", o.Replay, target)
		}
		return nil
	})
	if err := reader.Ping(ctx); err == nil {
		t.Error("the reader is still there")
	}
	if err := s.RestoreConflicts(ctx); err != nil {
		t.Fatal(err)
	}
	if v, _ := settings.AutoConfValue(read(t, s.autoConf()), "max_standby_streaming_delay"); v != "-1" {
		t.Errorf("max_standby_streaming_delay is %q, the administrator had set -1", v)
	}
}

// testIdleWalsenders holds that the walsender that reads the timeline exists only while the answer may be new, because
// every commit would wake it.
func testIdleWalsenders(t *testing.T, p, s *server) {
	for _, x := range []*server{p, s} {
		want := x.observe().Timeline
		if at, err := x.identify(t.Context()); err != nil || at.Timeline != want { // opens it
			t.Errorf("timeline %d was observed, and %s, %v is said", want, at, err)
		}
		x.waitFor("the session to end", func(context.Context) error {
			if got := x.observe().Timeline; got != want {
				return fmt.Errorf("timeline %d, it was %d", got, want)
			}
			if n := x.value("SELECT count(*)::text FROM pg_stat_activity WHERE backend_type = 'walsender' AND application_name = '" + session.Name + "'"); n != "0" {
				return fmt.Errorf("%s walsenders of the agent's own", n)
			}
			return nil
		})
	}
}

// wantSameEnd compares the WAL beyond replay with a full read from the last checkpoint, while nothing arrives.
func wantSameEnd(t *testing.T, s *server) (all ag.Position) {
	t.Helper()
	s.waitFor("both to find one end of WAL", func(ctx context.Context) error {
		said, err := s.runningEnd(ctx)
		if err != nil || said.received == 0 {
			return fmt.Errorf("%+v, %w", said, err)
		}
		if all, err = s.endOnDisk(ctx); err != nil {
			return err
		}
		got, ok, err := s.endBehindReplay(ctx, said)
		if after, again := s.runningEnd(ctx); again != nil || after.received != said.received || all.LSN > said.received {
			return fmt.Errorf("more was received, %w", again)
		}
		if err != nil || !ok || got != all {
			t.Errorf("behind replay WAL ends at %s, %v, %v; all of it at %s; %+v", got, ok, err, all, said)
		}
		return nil
	})
	return all
}

// disconnected waits until the secondary's walreceiver has ended.
func (s *server) disconnected() {
	s.t.Helper()
	s.waitFor("the walreceiver to end", func(ctx context.Context) error {
		o, err := s.Observe(ctx)
		if err == nil && o.WalReceiver != nil {
			err = errors.New("it is there")
		}
		return err
	})
}

// testReplayBehind holds that WAL that was received and not replayed counts.
func testReplayBehind(t *testing.T, p, s *server) {
	wantSameEnd(t, s)
	target := s.receivesOnly(p, "INSERT INTO t VALUES (7)", "SELECT pg_switch_wal()", "CREATE TABLE behind AS SELECT g FROM generate_series(1, 50000) g", "DELETE FROM t WHERE v = 7")
	p.kill(syscall.SIGQUIT)
	s.disconnected()
	if end := wantSameEnd(t, s); end.LSN < target {
		t.Errorf("WAL ends at %s, %s was received", end, target)
	}
	s.sql("SELECT pg_wal_replay_resume()")
	p.start(true)
	s.streams(p)
}

// tornRecord makes the primary write a record of 100 MB and stops the writing process within it, after the secondary
// has received its beginning. On a busy machine the whole record may get through first; then another one is written.
func tornRecord(t *testing.T, p, s *server) (ended <-chan struct{}) {
	const size = 100_000_000
	for range 20 {
		from, pid, done := p.observe().Flush, make(chan int, 1), make(chan struct{})
		go func() {
			defer close(done)
			_ = p.server.Fresh(context.Background(), func(c *pgx.Conn) error { // ends with the server
				pid <- int(c.PgConn().PID())
				_, err := c.Exec(context.Background(), fmt.Sprintf("SELECT pg_logical_emit_message(false, 'test', repeat('z', %d))", size))
				return err
			})
		}()
		s.waitFor("the beginning of a record", func(context.Context) error {
			if o := s.observe(); o.Receive < from+1<<20 {
				return fmt.Errorf("%s received of what follows %s", o.Receive, from)
			}
			return nil
		})
		writer := <-pid
		stopped := syscall.Kill(writer, syscall.SIGSTOP) == nil // otherwise it has ended
		if stopped && p.observe().Flush < from+size {
			return done
		}
		_ = syscall.Kill(writer, syscall.SIGCONT)
		<-done
		s.streams(p)
	}
	t.Fatal("each of 20 records was whole before its writer could be stopped")
	return nil
}

// testTorn holds that a primary that dies while it writes leaves the secondary with the beginning of a record, which
// can never be replayed.
func testTorn(t *testing.T, p, s *server) {
	ended := tornRecord(t, p, s)
	said := p.observe()
	p.kill(syscall.SIGQUIT)
	<-ended
	if e, err := p.EndOfWAL(t.Context()); err != nil || said.Whole.LSN == 0 || e.Compare(said.Whole) < 0 {
		t.Errorf("the primary published %s (flushed %s) and ends at %s after its crash, %v", said.Whole, said.Flush, e, err)
	}
	s.disconnected()
	o := s.observe()
	end := wantSameEnd(t, s)
	if o.Receive <= o.Replay || end.LSN >= o.Receive {
		t.Errorf("whole records up to %s, received %s, replayed %s: not torn", end, o.Receive, o.Replay)
	}
	sealed, err := s.EndOfWAL(t.Context())
	if o = s.observe(); o.Whole != end || sealed != end || err != nil {
		t.Errorf("whole records end at %s; published %s, sealed %s, %v", end, o.Whole, sealed, err)
	}
	received := ag.Position{Timeline: end.Timeline, LSN: o.Receive}
	s.kill(syscall.SIGQUIT)
	holds := func(pos ag.Position, want bool) {
		t.Helper()
		if got, err := s.Holds(t.Context(), pos); got != want || err != nil {
			t.Errorf("a copy that ends at %s and received up to %s holds %s: %v, %v", end, received, pos, got, err)
		}
	}
	holds(end, true)
	holds(received, true)
	holds(ag.Position{Timeline: end.Timeline, LSN: (received.LSN/(1<<20) + 65) << 20}, false)
	holds(ag.Position{Timeline: end.Timeline + 1, LSN: end.LSN}, false)
	s.start(false)
	p.start(true)
	s.streams(p)
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func testChecksums(t *testing.T, p, s *server, fork ag.LSN) {
	const n = 16 << 10
	sum := func(i *server, pos ag.Position) uint32 {
		t.Helper()
		crc, ok, err := i.WALChecksum(t.Context(), pos, n)
		if err != nil || !ok {
			t.Fatalf("checksum at %s: ok %v, %v", pos, ok, err)
		}
		return crc
	}
	at := ag.Position{Timeline: 1, LSN: fork}
	if a, b := sum(p, at), sum(s, at); a != b {
		t.Errorf("before the fork: %08x and %08x", a, b)
	}
	if a, b := sum(p, at), sum(s, ag.Position{Timeline: 5, LSN: fork}); a != b {
		t.Errorf("at the fork, along the new timeline: %08x and %08x", a, b)
	}
	end, err := p.EndOfWAL(t.Context())
	if err != nil || end.Timeline != 1 || end.LSN <= fork {
		t.Fatalf("the diverged copy ends at %s, %v", end, err)
	}
	behind := fork + 512
	if a, b := sum(p, ag.Position{Timeline: 1, LSN: behind}), sum(s, ag.Position{Timeline: 5, LSN: behind}); a == b {
		t.Errorf("behind the fork both are %08x", a)
	}
	if _, ok, err := p.WALChecksum(t.Context(), ag.Position{Timeline: 5, LSN: behind}, n); ok || err != nil {
		t.Errorf("a timeline that is not here: ok %v, %v", ok, err)
	}
	if _, ok, err := p.WALChecksum(t.Context(), ag.Position{Timeline: 1, LSN: end.LSN + 64<<20}, n); ok || err != nil {
		t.Errorf("WAL that is not here: ok %v, %v", ok, err)
	}
}

func testFollow(t *testing.T, s, third *server) {
	third.Instance.cfg.Load().UpstreamDir = s.cfg.Load().SocketDir
	third.start(false)
	flushed := s.observe().Flush
	third.streams(s)
	if o := third.observe(); o.Timeline != 5 {
		t.Errorf("the third replays timeline %d", o.Timeline)
	}
	if got := third.value("SELECT string_agg(v::text, ',' ORDER BY v) FROM t"); got != "1,2" {
		t.Errorf("the third has rows %s", got)
	}
	third.kill(syscall.SIGQUIT)
	if end, err := third.EndOfWAL(t.Context()); err != nil || end.Timeline != 5 || end.LSN < flushed {
		t.Errorf("the third's files end at %s, %v", end, err)
	}
}

func testRewind(t *testing.T, p, s *server, fork ag.LSN) {
	auto := "custom.of_this_node = 'kept'"
	if err := os.WriteFile(p.autoConf(), []byte(auto+"\nprimary_conninfo = 'host=elsewhere'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	source := fmt.Sprintf("host=%s port=%d user=postgres dbname=postgres", s.cfg.Load().SocketDir, session.Port)
	without := p.Config()
	without.Install.Rewind = false
	if err := New(without).Rewind(t.Context(), RewindOptions{SourceConninfo: source}); !errors.Is(err, ErrRewind) || p.Interrupted() {
		t.Errorf("rewind without pg_rewind: %v, interrupted %v", err, p.Interrupted())
	}
	if err := p.Rewind(t.Context(), RewindOptions{SourceConninfo: "host=" + t.TempDir()}); err == nil || errors.Is(err, ErrRewind) || p.Interrupted() {
		t.Errorf("rewind from nowhere: %v, interrupted %v", err, p.Interrupted())
	}
	if s.value("SELECT ("+sharedSegment+")::text") != "true" {
		t.Fatal("the source's segment is of one timeline only: this would show nothing")
	}
	var said []string
	forkDir := filepath.Join(p.dir, "forked")
	err := p.Rewind(t.Context(), RewindOptions{
		SourceConninfo: source,
		ForkDir:        forkDir,
		Progress:       func(line string) { said = append(said, line) },
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(said, "\n"))
	}
	if s.value("SELECT ("+sharedSegment+")::text") != "false" {
		t.Error("the source goes on in a segment of which the next rewind would copy yet a file more")
	}
	if p.Interrupted() || len(said) == 0 {
		t.Errorf("after the rewind: interrupted %v, progress %q", p.Interrupted(), said)
	}
	if got := read(t, p.autoConf()); got != auto+"\n" {
		t.Errorf("postgresql.auto.conf is now %q", got)
	}
	var kept ForkSummary
	if err := json.Unmarshal([]byte(read(t, filepath.Join(forkDir, "summary.json"))), &kept); err != nil {
		t.Fatal(err)
	}
	if want := (ag.Position{Timeline: 1, LSN: fork}); kept.Fork != want || kept.End.Compare(want) <= 0 {
		t.Errorf("kept from %s to %s, the fork is at %s", kept.Fork, kept.End, want)
	}
	for _, name := range []string{"pg_control", "pg_wal/" + pgfiles.SegmentName(1, fork>>24, 16<<20), "pg_wal/" + pgfiles.SegmentName(1, fork>>24+1, 16<<20)} {
		if !exists(filepath.Join(forkDir, name)) {
			t.Errorf("of the fork %s is not kept: %+v", name, kept)
		}
	}
	p.Instance.cfg.Load().UpstreamDir = s.cfg.Load().SocketDir
	p.Instance.cfg.Load().Slot = "cot_n1"
	p.start(false)
	s.sql("INSERT INTO t VALUES (3)")
	p.streams(s)
	if got := p.value("SELECT string_agg(v::text, ',' ORDER BY v) FROM t"); got != "1,2,3" {
		t.Errorf("the rewound copy has rows %s", got)
	}
	if o := p.observe(); o.Timeline != 5 {
		t.Errorf("the rewound copy replays timeline %d", o.Timeline)
	}
}

func TestInterruptedRewind(t *testing.T) {
	i := New(Config{Install: newest(t), PGData: t.TempDir(), StateDir: t.TempDir()})
	if i.Interrupted() {
		t.Fatal("a new instance is being rewound")
	}
	if err := i.writeRewindMark(&rewindMark{Phase: phaseRewind}); err != nil {
		t.Fatal(err)
	}
	if err := i.PrepareStart(t.Context(), nil); !errors.Is(err, ErrInterrupted) || !i.Interrupted() {
		t.Errorf("start of a half-rewound copy: %v", err)
	}
	if err := i.Rewind(t.Context(), RewindOptions{}); !errors.Is(err, ErrRewind) || !i.Interrupted() {
		t.Errorf("rewind of a half-rewound copy: %v", err)
	}
	own := "work_mem = '7MB'\n"
	if err := i.writeRewindMark(&rewindMark{Phase: phaseFinish, AutoConf: &own}); err != nil {
		t.Fatal(err)
	}
	if err := i.Rewind(t.Context(), RewindOptions{}); err != nil || i.Interrupted() || read(t, i.autoConf()) != own || !exists(i.path("standby.signal")) {
		t.Errorf("the last step of a rewind, taken up again: %v", err)
	}
}
