package experiment

import (
	"context"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab/pgtest"
	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// pair returns a primary and a replica, as a bed that compares two connection strings.
func pair(t *testing.T) *Bed {
	t.Helper()
	s, err := pgtest.New()
	if errors.Is(err, pgtest.ErrNoServer) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Remove(); err != nil {
			t.Error(err)
		}
	})
	if _, err := workload.LoadRows(t.Context(), s.DSN(), 5000, nil); err != nil {
		t.Fatal(err)
	}
	r, err := s.Replica()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Remove(); err != nil {
			t.Error(err)
		}
	})
	return &Bed{A: s.DSN(), B: r.DSN(), Blocks: 2, Seed: 1}
}

// whole checks that an experiment can be printed and saved, and that every figure is a number.
func whole(t *testing.T, e report.Experiment, rows int) {
	t.Helper()
	if len(e.Tables) == 0 || len(e.Tables[0].Rows) != rows || e.Answer == "" {
		t.Errorf("%s: %d tables, answer %q", e.Name, len(e.Tables), e.Answer)
	}
	for _, table := range e.Tables {
		for _, row := range table.Rows {
			if len(row) != len(table.Columns) {
				t.Errorf("%s, %s: %d cells in %d columns", e.Name, table.Title, len(row), len(table.Columns))
			}
			for i, v := range row {
				if f, ok := v.(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
					t.Errorf("%s, %s: %s is %v", e.Name, table.Title, table.Columns[i].Name, f)
				}
				if table.Columns[i].Published && v != nil {
					t.Errorf("%s: a scaled run shows a published figure: %v", e.Name, v)
				}
			}
		}
	}
	for _, c := range e.Comparisons {
		if c.Verdict != method.Withheld {
			t.Errorf("%s: two blocks gave the verdict %s", e.Name, c.Verdict)
		}
		if c.Published != nil {
			t.Errorf("%s: a scaled run has a published ratio", e.Name)
		}
	}
	if err := (&report.Report{Title: e.Title, Experiments: []report.Experiment{e}}).Save(t.TempDir()); err != nil {
		t.Error(err)
	}
	t.Log(e.Answer)
}

// TestOnAPair runs every experiment that two connection strings allow, on real servers.
func TestOnAPair(t *testing.T) {
	b := pair(t)
	t.Run("routing", func(t *testing.T) {
		e, err := b.Routing(t.Context(), RoutingOptions{Threads: []int{1, 3}, Iterations: 20, Rows: 5000})
		if err != nil {
			t.Fatal(err)
		}
		whole(t, e, 2)
		for i, c := range e.Tables[0].Columns {
			if strings.HasSuffix(c.Name, ": routed") && e.Tables[0].Rows[1][i] != 100.0 {
				t.Errorf("%s: %v", c.Name, e.Tables[0].Rows[1][i])
			}
		}
	})
	t.Run("read", func(t *testing.T) {
		e, err := b.Read(t.Context(), ReadOptions{Rows: 5000, Formats: []workload.Format{workload.Text, workload.Binary, workload.Copy}})
		if err != nil {
			t.Fatal(err)
		}
		whole(t, e, 3)
	})
	t.Run("connect", func(t *testing.T) {
		e, err := b.Connect(t.Context(), ConnectOptions{Clients: []int{1, 2}, Duration: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		whole(t, e, 2)
	})
	same := *b
	same.B = b.A
	t.Run("commit", func(t *testing.T) {
		e, err := same.Commit(t.Context(), CommitOptions{Cells: []Cell{{1, 1000}, {20, 1}}})
		if err != nil {
			t.Fatal(err)
		}
		whole(t, e, 2)
	})
	t.Run("tunnel", func(t *testing.T) {
		runs := 0
		e, err := same.Tunnel(t.Context(), TunnelOptions{
			Tunnel: workload.Tunnel{Rows: 100, Bytes: 400, Every: 25}, Payloads: workload.Payloads, CSV: func(time.Time, time.Duration, workload.Payload, string) { runs++ },
		})
		if err != nil {
			t.Fatal(err)
		}
		whole(t, e, 3)
		if runs != 16 {
			t.Errorf("%d runs were told, want 2 blocks of 2 arms of 4 payloads", runs)
		}
	})
	t.Run("conditions", func(t *testing.T) { conditionsEverywhere(t, b) })
	t.Run("replayed", func(t *testing.T) { waitsForReaders(t, b) })
	t.Run("workloads", func(t *testing.T) {
		list := []*Workload{QueryWorkload("select 1", 2)}
		if os.Getenv("COTERIE_LONG") != "" { // the load takes seconds, so it runs only on request
			list = append(list, TproccWorkload(2, 1))
		}
		for _, w := range list {
			if w.Prepare != nil {
				if err := w.Prepare(t.Context(), b.A); err != nil {
					t.Fatal(err)
				}
			}
			end := w.start(t.Context(), b.A)
			time.Sleep(10 * step)
			did := end()
			if did.err != nil || len(did.points) == 0 {
				t.Errorf("%s: %d points, %v", w.Name, len(did.points), did.err)
			}
			if s := did.series("x", w.Unit, did.began, [2]float64{-1, 60}); len(s.Points) != len(did.points) {
				t.Errorf("%s: %d of %d points are drawn", w.Name, len(s.Points), len(did.points))
			}
			if w.Check != nil {
				replayed(t, b) // the load arrives in parts
				if err := w.Check(t.Context(), b, b.A); err != nil {
					t.Error(err)
				}
			}
		}
		var none *Workload
		if did := none.start(t.Context(), b.A)(); did.err != nil || did.points != nil {
			t.Errorf("nothing did %+v", did)
		}
	})
	t.Run("failover", func(t *testing.T) {
		if _, err := b.Failover(t.Context(), FailoverOptions{}); err == nil {
			t.Error("a pair was failed over")
		}
	})
}

// onlyGroup is a group without limits.
type onlyGroup struct{ Group }

// TestUncappedIsRefused: an experiment that needs limited nodes is refused before it changes anything if the nodes have
// no limits.
func TestUncappedIsRefused(t *testing.T) {
	b := &Bed{Group: onlyGroup{}, Blocks: 6}
	if _, err := b.Routing(t.Context(), RoutingOptions{Threads: []int{1}}); err == nil || !strings.Contains(err.Error(), "limits") {
		t.Errorf("routing: %v", err)
	}
	b.Published = true
	if _, err := b.Read(t.Context(), ReadOptions{Rows: 1}); err == nil || !strings.Contains(err.Error(), "limits") {
		t.Errorf("read as published: %v", err)
	}
	if _, err := b.Tprocc(t.Context(), TproccOptions{Users: []int{1}}); err == nil || !strings.Contains(err.Error(), "limits") {
		t.Errorf("tprocc: %v", err)
	}
}

func TestPublishedColumns(t *testing.T) {
	f, err := report.Published("read_only_routing_2016.csv")
	if err != nil {
		t.Fatal(err)
	}
	b := &Bed{Published: true}
	if r := b.publishedRatio(f, "12", "routed_mb_s", "primary_mb_s"); r == nil || math.Abs(*r-1.64) > 0.01 {
		t.Errorf("published ratio %v", r)
	}
	b.Published = false
	if r := b.publishedRatio(f, "12", "routed_mb_s", "primary_mb_s"); r != nil || b.figure(f, "12", "routed_s") != nil {
		t.Error("a scaled run shows published figures")
	}
	for _, kind := range []string{"", "OFF", "ZSTD"} {
		f, err := report.Published(publishedMatrix(kind))
		if err != nil {
			t.Fatal(err)
		}
		if columns := matrixColumns(); len(f.Columns)-2 != 8 || !columns[9].Published || columns[10].Published {
			t.Errorf("%q: the published columns are not those of the table", kind)
		}
	}
}

func TestUntil(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n := 0
	if err := until(ctx, time.Minute, "three", func(context.Context) (bool, error) { n++; return n == 3, nil }); err != nil || n != 3 {
		t.Error(n, err)
	}
	last := errors.New("the reason")
	if err := until(ctx, 60*time.Millisecond, "never", func(context.Context) (bool, error) { return false, last }); !errors.Is(err, last) {
		t.Error(err)
	}
}
