package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/agenttest"
)

// readable reports whether a node sends readers to itself, and whether it tells the others to.
func (l *lab) readable(id ag.ReplicaID) (own, told bool) {
	r := l.Node(id).State().Routes
	if r == nil {
		return false, false
	}
	t, _ := r.Target(id)
	return t.Readable, l.Record.Snapshot().Statuses[id].Readable
}

// A copy that has diverged and cannot be repaired yet, because its leader is out of reach, serves no reader. Those that
// it served before it knew are ended within a second.
func TestDivergedCopyServesNoReader(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Isolate("a", true)
		if err := l.WriteWithin("a", time.Second); err == nil {
			t.Error("a commit that no other member has was acknowledged")
		}
		next := l.leader(20*time.Second, "a")
		l.write(next)
		l.wait("a's server is a standby that serves readers", time.Minute, func() bool { own, _ := l.readable("a"); return own })
		l.Isolate("a", false)
		l.Cut("a", next, true)
		l.wait("a knows that it has diverged", 10*time.Second, func() bool { v := l.agents["a"].View(); return v.Quorum && v.Diverged() })
		l.wait("no reader is sent to a, and its readers are ended", time.Second, func() bool {
			own, told := l.readable("a")
			ended := slices.ContainsFunc(l.Node("a").State().Events, func(e string) bool { return strings.Contains(e, "not in the group's history") })
			return !own && !told && ended
		})
		for range 300 {
			if own, told := l.readable("a"); own || told {
				t.Fatal("a serves readers again, and has still diverged")
			}
			time.Sleep(100 * time.Millisecond)
		}
		l.Cut("a", next, false)
		l.formed(next, time.Minute)
		l.wait("a serves readers again", time.Minute, func() bool { own, told := l.readable("a"); return own && told })
	})
}

// A failover that is given up lets readers come to its target again, and they come while the next one is prepared: only
// the primary that is about to hand over has them leave.
func TestGivenUpFailoverReturnsReaders(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.Node("a").Store.Inject("commit", agenttest.Fault{Err: agent.ErrConflict})
		l.plan("c")
		if told := l.Node("c").State().Events; !slices.Contains(told, "continue readers") {
			t.Fatalf("the target's readers were told %q", told)
		}
		serves := func() bool { own, told := l.readable("c"); return own && told }
		l.wait("a leads again, and c serves readers", time.Minute, func() bool { return l.WriteWithin("a", time.Second) == nil && serves() })
		prepares := make(chan struct{})
		l.Node("a").Before("checkpoint", func() { close(prepares); time.Sleep(10 * time.Second) })
		l.Record.SetOp(ag.Op{ID: "2", Kind: ag.OpPlanned, To: "c", Epoch: l.epoch()})
		<-prepares
		time.Sleep(time.Second) // c has seen the request
		if v := l.agents["c"].View(); v.Op.ID != "2" || !serves() {
			t.Errorf("c, which knows of request %q, serves no readers while the failover is prepared", v.Op.ID)
		}
		l.leader(time.Minute, "a", "b")
	})
}

// A secondary whose server answers no new connection takes no reader, at this node or any other, and ends none that it
// has. It takes them again once the server answers.
func TestSilentServerTakesNoReader(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		serves := func() bool { own, told := l.readable("c"); return own && told }
		l.wait("c serves readers", time.Minute, serves)
		before := len(l.Node("c").State().Events)
		l.probes["c"].find(silent())
		l.wait("no reader is sent to c", 10*time.Second, func() bool {
			own, told := l.readable("c")
			at, _ := l.Node("b").State().Routes.Target("c")
			return !own && !told && !at.Readable
		})
		for _, e := range l.Node("c").State().Events[before:] {
			if strings.Contains(e, "close readers") || strings.Contains(e, "continue readers") {
				t.Errorf("c did %q to the readers that it had", e)
			}
		}
		l.probes["c"].find(agent.Findings{})
		l.wait("c serves readers again", 10*time.Second, serves)
	})
}
