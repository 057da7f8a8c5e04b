package walstream

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/postgres/replication"
)

// files is a server whose WAL is what a test says.
type files struct {
	end      ag.Position
	crc      uint32
	known    bool // whether there is WAL to sum up
	err      error
	redo     ag.LSN // not 0: there is no WAL of it
	keeps    bool
	kept     ag.LSN
	rows     int
	rowsGone time.Duration // after this long no row is left
	began    time.Time
}

func (f *files) EndOfWAL(context.Context) (ag.Position, error) { return f.end, f.err }

func (f *files) WALChecksum(context.Context, ag.Position, int) (uint32, bool, error) {
	return f.crc, f.known, f.err
}

func (f *files) Keeps(context.Context, ag.LSN) (bool, ag.LSN, error) { return f.keeps, f.kept, f.err }

func (f *files) MissingRedo(context.Context) (ag.LSN, bool, error) { return f.redo, f.redo != 0, nil }

func (f *files) WalsenderRows(context.Context, string) (int, error) {
	if time.Since(f.began) >= f.rowsGone {
		return 0, f.err
	}
	return f.rows, f.err
}

// decider is an agent that decided what a test says.
type decider struct {
	view  *ag.View
	facts agent.Facts
}

func (d decider) View() *ag.View     { return d.view }
func (d decider) Facts() agent.Facts { return d.facts }

func streams(f *files, d decider) *Streams {
	ready := make(chan struct{})
	close(ready)
	return &Streams{StreamsConfig{Self: "n1", Incarnation: "n1-1", Server: f, Agent: func() Decider { return d }, Ready: ready}}
}

// TestVerify holds which copies may stream from a primary on timeline 3, which began at 0/3000 on timeline 2.
func TestVerify(t *testing.T) {
	t.Parallel()
	history := agent.Facts{Leading: true, Epoch: 3, Timelines: []ag.TimelineEntry{{TLI: 1}, {TLI: 2, Parent: 1, Switch: 0x2000}, {TLI: 3, Parent: 2, Switch: 0x3000}}}
	at := func(tli ag.Timeline, lsn ag.LSN) replication.Hello {
		return replication.Hello{Member: "n2", Kind: replication.KindWAL, Position: ag.Position{Timeline: tli, LSN: lsn}}
	}
	summed := func(h replication.Hello, crc uint32) replication.Hello {
		h.CRC, h.CRCLen = crc, checkedWAL
		return h
	}
	all := files{keeps: true, crc: 7, known: true}
	for _, tt := range []struct {
		name   string
		server files
		hello  replication.Hello
		code   string // "": it may stream
	}{
		{"a prefix of the history", all, at(2, 0x2800), ""},
		{"exactly at the switch", all, at(2, 0x3000), ""},
		{"on the current timeline", all, at(3, 0x4000), ""},
		{"beyond the switch", all, at(2, 0x3001), replication.CodeDiverged},
		{"on a timeline that the history does not have", all, at(9, 0x1000), replication.CodeDiverged},
		{"other bytes before the same position", all, summed(at(3, 0x4000), 8), replication.CodeDiverged},
		{"the same bytes", all, summed(at(3, 0x4000), 7), ""},
		{"WAL that is no longer kept", files{kept: 0x4000}, at(3, 0x3500), replication.CodeGone},
		{"a new copy that needs WAL that is gone", files{kept: 0x4000}, replication.Hello{Member: "n2", Kind: replication.KindWAL, Needs: 0x3500}, replication.CodeGone},
		{"a new copy that needs WAL that is here", all, replication.Hello{Member: "n2", Kind: replication.KindWAL, Needs: 0x3500}, ""},
		{"an empty copy asks for nothing that is gone", files{kept: 0x4000}, at(3, 0), ""},
		{"WAL that cannot be read here decides nothing", files{err: errors.New("EIO")}, summed(at(3, 0x4000), 8), ""},
	} {
		a := streams(&tt.server, decider{facts: history}).Verify(t.Context(), tt.hello)
		if a.OK != (tt.code == "") || a.Code != tt.code {
			t.Errorf("%s: %+v, want %q", tt.name, a, tt.code)
		}
	}
}

// TestHello holds that the end of WAL on disk is sent rather than the view's, which may be older.
func TestHello(t *testing.T) {
	t.Parallel()
	seen := ag.Position{Timeline: 2, LSN: 0x1000}
	d := decider{view: &ag.View{Local: ag.Local{Copy: "c1", Position: seen}}}
	h := streams(&files{end: ag.Position{Timeline: 2, LSN: 0x1800}, crc: 9, known: true}, d).Hello()
	if h.Member != "n1" || h.Incarnation != "n1-1" || h.Copy != "c1" || h.Position.LSN != 0x1800 || h.CRC != 9 || h.CRCLen != checkedWAL {
		t.Errorf("%+v", h)
	}
	h = streams(&files{err: errors.New("EIO")}, d).Hello()
	if h.Position != seen || h.CRCLen != 0 || h.Needs != 0 {
		t.Errorf("where the WAL cannot be read: %+v", h)
	}
	h = streams(&files{err: errors.New("no WAL"), redo: 0x1500}, decider{view: &ag.View{Local: ag.Local{Copy: "c1"}}}).Hello()
	if h.Position.LSN != 0 || h.Needs != 0x1500 {
		t.Errorf("a new copy without WAL: %+v", h)
	}
}

// TestOldRowGone waits for the last walsender of a name, and no longer than its caller.
func TestOldRowGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := streams(&files{rows: 1, rowsGone: time.Second, began: time.Now()}, decider{})
		if err := s.OldRowGone(t.Context(), "n2"); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		s = streams(&files{rows: 1, rowsGone: time.Hour, began: time.Now()}, decider{})
		if err := s.OldRowGone(ctx, "n2"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "n2") {
			t.Errorf("a walsender that stays: %v", err)
		}
		s = streams(&files{err: errors.New("no answer"), began: time.Now()}, decider{})
		ctx, cancel2 := context.WithTimeout(t.Context(), time.Second)
		defer cancel2()
		if err := s.OldRowGone(ctx, "n2"); err == nil || !strings.Contains(err.Error(), "no answer") {
			t.Errorf("a server that does not answer counts as one without walsenders: %v", err)
		}
	})
}

// TestInForce holds that only the leader of the record has commits that wait.
func TestInForce(t *testing.T) {
	t.Parallel()
	led := func(by ag.ReplicaID) *ag.View {
		return &ag.View{Record: ag.Record{Epoch: ag.EpochRecord{Leader: by}, State: ag.State{K: 1, V: []ag.Member{{ID: "n2"}, {ID: "n3"}}}}}
	}
	if m, k := streams(&files{}, decider{view: led("n1")}).InForce(); len(m) != 2 || k != 1 {
		t.Errorf("the leader waits for %d of %v", k, m)
	}
	for name, s := range map[string]*Streams{
		"another leader": streams(&files{}, decider{view: led("n2")}), "no view yet": streams(&files{}, decider{}),
		"no agent yet": {StreamsConfig{Self: "n1", Ready: make(chan struct{})}},
	} {
		if m, k := s.InForce(); m != nil || k != 0 {
			t.Errorf("%s: %d of %v", name, k, m)
		}
	}
}
