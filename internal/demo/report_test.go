package demo

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/measure/ledger"
	"github.com/coteriedb/coterie/internal/measure/tpcc"
)

// sound is a report of a run in which nothing went wrong.
func sound() Report {
	r := Report{
		Killed: "n1", Promoted: "n2", OutageMS: 7454, LSN: "0/1329", Planned: Planned{From: "n2", To: "n3", OutageMS: 918},
		Reads: []Reads{{"while n1 led", map[string]int64{"n2": 1, "n3": 1}}},
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		v := ledger.Verdict{Acknowledged: 24118, Unknown: 3, UnknownPresent: 2}
		r.Replicas = append(r.Replicas, replica(finding{node: n, digest: "abcdef0123", conditions: make([]tpcc.Condition, 12)}, v))
	}
	return r
}

func TestReportOfASoundRun(t *testing.T) {
	t.Parallel()
	r := sound()
	r.judge()
	if !r.Sound || len(r.Wrong) != 0 || !r.SameContents {
		t.Fatalf("judged as %v", r.Wrong)
	}
	text := strings.Join(r.lines(), "\n")
	for _, want := range []string{
		"outage 7454 ms (n1 killed, n2 took over)", "acknowledged 24,118   lost 0   unknown 3 (2 present, 1 absent)   duplicates 0",
		"planned failover n2→n3: outage 918 ms", "reads while n1 led: n2 50 % n3 50 %", "n1 12/12  n2 12/12  n3 12/12", "at 0/1329: all replicas hold the same",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	if strings.Contains(text, "WRONG") {
		t.Errorf("something is wrong with\n%s", text)
	}
}

func TestReportFindsEveryBrokenPromise(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, want string
		break_     func(*Report)
	}{
		{"lost on one replica", "n2 lacks 23 acknowledged rows: 0/7, 0/8, 0/9 and 20 more", func(r *Report) {
			r.Replicas[1].Ledger.Lost, r.Replicas[1].Ledger.LostIDs = 23, []string{"0/7", "0/8", "0/9", "0/10"}
		}},
		{"duplicate", "duplicates 1", func(r *Report) { r.Replicas[0].Ledger.Duplicates = 1 }},
		{"two servers", "TWO SERVERS", func(r *Report) { r.Replicas[0].Ledger.TwoServers = true }},
		{"rolled back and present", "rolled back but present 2", func(r *Report) { r.Replicas[0].Ledger.FailedPresent = 2 }},
		{"condition", "n3: condition 4 (orders and lines): 2 violations, as district 7", func(r *Report) {
			bad := make([]tpcc.Condition, 12)
			bad[3] = tpcc.Condition{Number: 4, Name: "orders and lines", Violations: 2, Sample: "district 7"}
			r.Replicas[2] = replica(finding{node: "n3", digest: "abcdef0123", conditions: bad}, r.Replicas[2].Ledger)
		}},
		{"contents", "the replicas differ at the same position", func(r *Report) { r.Replicas[2].Digest = "ffff" }},
		{"nothing was compared", "nothing was compared", func(r *Report) { r.Replicas = nil }},
		{"nothing was acknowledged", "nothing was compared", func(r *Report) {
			for i := range r.Replicas {
				r.Replicas[i].Ledger.Acknowledged = 0
			}
		}},
	} {
		r := sound()
		c.break_(&r)
		r.judge()
		text := strings.Join(r.lines(), "\n")
		if r.Sound || !strings.Contains(text, "WRONG: ") || !strings.Contains(text, c.want) {
			t.Errorf("%s: sound %v, %q is not in\n%s", c.name, r.Sound, c.want, text)
		}
	}
}

func TestConnectionsAddUp(t *testing.T) {
	t.Parallel()
	c := connections(tpcc.Result{Fail: 1, Unknown: 2, Clients: []tpcc.ClientResult{{Reconnects: 1, LongestGap: time.Second}, {Reconnects: 2, LongestGap: 3 * time.Second}}})
	if want := (Connections{4, 3, 3000, 1, 2}); c != want {
		t.Errorf("%+v", c)
	}
	if s := c.String(); !strings.Contains(s, "of 4 sessions 1 kept, 3 made again") {
		t.Error(s)
	}
}
