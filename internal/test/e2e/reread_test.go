package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndReread has a secondary receive WAL that it cannot read, as if its memory or disk had changed the bytes:
// PostgreSQL alone would read them again for ever. The agent starts the server again, which requests them again.
func TestEndToEndReread(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	was := g.ready(t)
	n := secondaries(was)[0]
	g.privately1(t, n, "SELECT pg_wal_replay_pause()")
	g.until(t, "replay is paused", func() bool { return g.askPrivately(t, n, "SELECT pg_get_wal_replay_pause_state()") == "paused" })
	replayed := g.askPrivately(t, n, "SELECT pg_last_wal_replay_lsn()")
	sql(t, g.ReadWrite(), "SELECT count(pg_logical_emit_message(true, 'damage', repeat('x', 8000))) FROM generate_series(1, 40)")
	g.until(t, "what follows is received", func() bool {
		return g.askPrivately(t, n, "SELECT pg_wal_lsn_diff(pg_last_wal_receive_lsn(), '"+replayed+"') > 200000") == "true"
	})
	damage(t, g, n, replayed)
	g.privately1(t, n, "SELECT pg_wal_replay_resume()")
	g.until(t, "the agent starts the server again", func() bool {
		for _, d := range g.decisions(t, n) {
			if d.Rule == ag.RuleReread {
				t.Log(d.Because)
				return true
			}
		}
		return false
	})
	if s := g.ready(t); *s.Primary != *was.Primary || s.Epoch != was.Epoch {
		t.Errorf("%s leads epoch %d now", *s.Primary, s.Epoch)
	}
	g.judge(t)
	g.down(t)
}

// damage zeroes 64 KiB of a node's log, from the second page after an address on. The page of the address itself has
// been read.
func damage(t *testing.T, g *group, node, after string) {
	t.Helper()
	high, low, _ := strings.Cut(after, "/")
	h, err1 := strconv.ParseUint(high, 16, 32)
	l, err2 := strconv.ParseUint(low, 16, 32)
	if err1 != nil || err2 != nil {
		t.Fatalf("position %q", after)
	}
	const page, segment = 8 << 10, 16 << 20
	at := (l/page + 2) * page
	if at/segment != (at+8*page)/segment {
		t.Skip("the log is about to begin a new file")
	}
	tli := g.askPrivately(t, node, "SELECT received_tli FROM pg_stat_wal_receiver")
	id, err := strconv.Atoi(tli)
	if err != nil {
		t.Fatalf("timeline %q", tli)
	}
	name := filepath.Join(g.node(node), "pgdata", "pg_wal", fmt.Sprintf("%08X%08X%08X", id, h, at/segment))
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 8*page), int64(at%segment)); err != nil {
		t.Fatal(err)
	}
}

func (g *group) privately1(t *testing.T, node, statement string) {
	t.Helper()
	if err := g.privately(t, node, statement); err != nil {
		t.Fatal(err)
	}
}

func (g *group) until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
