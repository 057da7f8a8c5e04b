package demo

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/measure/tpcc"
)

func TestMeterCountsReadsByNodeAndStage(t *testing.T) {
	t.Parallel()
	m := newMeter()
	m.names["started 10:00"] = "n2"
	m.names["started 11:00"] = "n2"                                    // it was restarted
	m.tick(tpcc.Interval{TPS: 10, Reads: map[string]int64{"n3": 100}}) // before any stage
	m.in("while n1 led")
	m.tick(tpcc.Interval{TPS: 2000, Reads: map[string]int64{"started 10:00": 1, "started 11:00": 2, "n3": 1}})
	m.in("")
	got := m.byNode("while n1 led")
	if len(got) != 2 || got["n2"] != 3 || got["n3"] != 1 {
		t.Errorf("reads by node: %v", got)
	}
	if s := shares(got); s != "n2 75 % n3 25 %" {
		t.Errorf("shares: %s", s)
	}
	line := m.line(20*time.Second, 4321)
	for _, want := range []string{"00:20 ██████████ 2,000 tx/s", "ledger 4,321 rows", "n2 75 %"} {
		if !strings.Contains(line, want) {
			t.Errorf("%q lacks %q", line, want)
		}
	}
}

func TestChildrenAreFoundByTheirTitle(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sleep", "59.125")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}()
	// Between fork and exec the child has the title of its parent.
	for end := time.Now().Add(10 * time.Second); !slices.Contains(children(os.Getpid(), "59.125"), cmd.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the child was not found")
		}
	}
	if got := children(os.Getpid(), "walsender"); len(got) != 0 {
		t.Errorf("found %v", got)
	}
}
