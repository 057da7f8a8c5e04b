package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab"
)

// overloadMinutes is how long the overload of the long proof lasts; make overload MINUTES=n takes its time.
const overloadMinutes = 2

// burnersPerCPU is how many busy processes run for each processor, beside the group's own.
const burnersPerCPU = 2

// TestEndToEndOverload keeps more processes than processors busy and checks that this causes neither a failover nor
// answers that a primary holds back because its voters are too slow.
func TestEndToEndOverload(t *testing.T) {
	long(t)
	during := time.Duration(setting(t, "COTERIE_OVERLOAD_MINUTES", overloadMinutes)) * time.Minute
	g := newGroup(t, lab.Options{})
	was := g.ready(t)
	held, before := g.heldAnswers(t), g.ledger.Progress().Acknowledged
	relax := burn(t, burnersPerCPU*runtime.NumCPU())
	began, waited := time.Now(), processorPressure(t)
	for time.Since(began) < during {
		time.Sleep(5 * time.Second)
		s, err := g.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s.Epoch != was.Epoch {
			t.Fatalf("epoch %d after %d: a failover without a fault, %v into the overload", s.Epoch, was.Epoch, time.Since(began).Round(time.Second))
		}
	}
	pressure := 100 * (processorPressure(t) - waited).Seconds() / time.Since(began).Seconds()
	relax()
	now := g.ready(t)
	held, acked := g.heldAnswers(t)-held, g.ledger.Progress().Acknowledged-before
	var told strings.Builder
	fmt.Fprintf(&told, "%d processes kept %d processors busy for %v beside a group of three replicas at the profile default and its two writers; somebody waited for a\n"+
		"processor %.0f %% of the time\nfalse failovers %d\nanswers held %.0f of %d (p99.9: %s)\n",
		burnersPerCPU*runtime.NumCPU(), runtime.NumCPU(), during, pressure, now.Epoch-was.Epoch, held, acked, noneOr(held*1000 <= float64(acked)))
	t.Log(told.String())
	if now.Epoch != was.Epoch || *now.Primary != *was.Primary {
		t.Errorf("%d false failovers", now.Epoch-was.Epoch)
	}
	if held*1000 > float64(acked) {
		t.Errorf("%.0f of %d answers were held: more than one of a thousand", held, acked)
	}
	g.down(t)
	record(t, "make overload", "COTERIE_OVERLOAD_RECORD", told.String())
}

func noneOr(none bool) string {
	if none {
		return "none"
	}
	return "some"
}

// burn starts processes that use a whole processor each. The end of the test ends them at the latest.
func burn(t *testing.T, n int) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all []*exec.Cmd
	end = func() {
		cancel()
		for _, b := range all {
			_ = b.Wait()
		}
		all = nil
	}
	t.Cleanup(end)
	for range n {
		b := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
		if err := b.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	return end
}

// processorPressure is how long any process has waited for a processor since the system was started; 0 where the kernel
// does not measure it.
func processorPressure(t *testing.T) time.Duration {
	t.Helper()
	b, _ := os.ReadFile("/proc/pressure/cpu")
	_, rest, _ := strings.Cut(string(b), "total=")
	if rest, _, _ = strings.Cut(rest, "\n"); rest == "" {
		return 0
	}
	us, err := strconv.ParseInt(rest, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(us) * time.Microsecond
}

// heldAnswers is how often an answer waited at a gate, on all nodes together, since their agents were started.
func (g *group) heldAnswers(t *testing.T) (n float64) {
	t.Helper()
	for _, r := range g.ready(t).Replicas {
		n += metric(t, r.HTTP, "coterie_answers_held_total")
	}
	return n
}

// metric reads one metric of a node.
func metric(t *testing.T, address, name string) float64 {
	t.Helper()
	v, found := metricIfAny(t, address, name)
	if !found {
		t.Fatalf("%s has no metric %s", address, name)
	}
	return v
}

// metricIfAny is metric of one that may not be there.
func metricIfAny(t *testing.T, address, name string) (v float64, found bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && key == name {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v, true
		}
	}
	return 0, false
}
