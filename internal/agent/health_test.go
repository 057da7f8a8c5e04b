package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/durable"
)

// probes find what a test tells them to.
type probes struct {
	mu      sync.Mutex
	now     agent.Findings
	autopsy agent.CrashReport
	slow    time.Duration // of the autopsy
}

func (p *probes) find(f agent.Findings) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = f
}

func (p *probes) Report() agent.Findings {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

func (p *probes) CrashReport(context.Context) (agent.CrashReport, error) {
	time.Sleep(p.slow)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.autopsy, nil
}

func (p *probes) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.Lost = ""
}

func (l *lab) suspend(id ag.ReplicaID, on bool) {
	l.Record.SetGroup(func(g *ag.Group) {
		g.Replicas = slices.Clone(g.Replicas)
		for i := range g.Replicas {
			if g.Replicas[i].ID == id {
				g.Replicas[i].Suspended = on
			}
		}
	})
}

func silent() agent.Findings {
	return agent.Findings{Health: ag.Health{Level: 2, Because: "no answer", Restart: true}}
}

func TestAnIllPrimaryStepsDown(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		at := boottime.Now()
		l.Node("a").Hang(true)
		l.probes["a"].find(silent())
		next := l.leader(10*time.Second, "a")
		if took := boottime.Now() - at; took > 4*time.Second {
			t.Errorf("%s took %v", next, took)
		}
		l.probes["a"].find(agent.Findings{})
		l.write(next)
		l.formed(next, time.Minute)
		was := l.epoch()
		l.probes[next].find(silent()) // the third replica is well, and takes over
		last := l.leader(10*time.Second, next)
		if last == "a" {
			t.Error("the leadership went back to one that was left for its health")
		}
		l.probes[next].find(agent.Findings{})
		l.formed(last, time.Minute)
		if l.epoch() != was+1 {
			t.Errorf("epoch %d after %d", l.epoch(), was)
		}
		l.probes[last].find(agent.Findings{Health: ag.Health{Level: 3, Because: "a shared ill"}})
		time.Sleep(time.Minute)
		l.write(last) // every other member was unhealthy too: it continues
		if l.epoch() != was+1 {
			t.Errorf("more than n-1 failovers: epoch %d", l.epoch())
		}
	})
}

func TestAHungPrimaryThatNobodyCanRelieveIsStartedAgain(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.probes["b"].find(silent())
		l.probes["c"].find(silent())
		time.Sleep(7 * time.Second) // their reports
		n := l.Node("a")
		starts := n.State().Starts
		n.Hang(true)
		l.probes["a"].find(silent())
		l.wait("a is started again", 10*time.Second, func() bool { return n.State().Starts > starts })
		l.probes["a"].find(agent.Findings{})
		l.write(l.leader(30 * time.Second))
	})
}

func TestCrashesAreRelievedOnceEach(t *testing.T) {
	inBubble(t, func(l *lab) {
		was := l.epoch()
		leaders := map[ag.ReplicaID]bool{}
		for range 8 { // a query that kills the server wherever it runs
			now := l.leader(time.Minute)
			l.formed(now, time.Minute)
			leaders[now] = true
			l.Logf("%s leads epoch %d and crashes", now, l.epoch())
			l.Node(now).Crash()
			time.Sleep(3 * time.Second)
		}
		last := l.leader(time.Minute)
		l.write(last)
		if len(leaders) != 3 {
			t.Errorf("led by %v", leaders)
		}
		v := l.agents[last].View()
		if v.Local.StoodDown != "" || v.Local.Health.Level != 3 || !strings.Contains(v.Local.Health.Because, "by itself") {
			t.Errorf("%+v", v.Local)
		}
		if e := l.epoch(); e > was+8 {
			t.Errorf("epoch %d after %d", e, was)
		}
	})
}

func TestTheLoopStandingStillEndsTheLease(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		free := make(chan struct{})
		l.Node("a").Before("status", func() { <-free }) // a dead disk, or a bug
		next := l.leader(40*time.Second, "a")
		l.write(next)
		close(free)
		l.formed(next, time.Minute)
	})
}

func TestNoRoomNoStart(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.probes["a"].find(agent.Findings{NoRoom: "the WAL directory has 0 KiB free"})
		l.Node("a").Crash()
		next := l.leader(10*time.Second, "a")
		starts := l.Node("a").State().Starts
		time.Sleep(time.Minute)
		if s := l.Node("a").State(); s.Starts != starts || s.Running {
			t.Errorf("started without room: %+v", s)
		}
		if st := l.Record.Snapshot().Statuses["a"]; !strings.Contains(st.Progress, "0 KiB free") {
			t.Errorf("its status does not say why: %+v", st)
		}
		l.probes["a"].find(agent.Findings{})
		l.formed(next, time.Minute)
	})
}

func TestALostWriteIsQuarantined(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		l.probes["a"].autopsy = agent.CrashReport{Lost: "PANIC: could not fsync"}
		l.Node("a").Crash()
		next := l.leader(10*time.Second, "a")
		l.wait("a is suspended and down", 20*time.Second, func() bool {
			r, _ := l.Record.Snapshot().Group.Replica("a")
			return r.Suspended && !l.Node("a").State().Running
		})
		seeds := l.Node("a").State().Seeds
		l.stop("a") // the quarantine outlives the agent
		l.start("a")
		time.Sleep(30 * time.Second)
		if s := l.Node("a").State(); s.Running {
			t.Error("started under quarantine")
		}
		l.probes["a"].autopsy = agent.CrashReport{}
		l.suspend("a", false) // coterie replica resume
		l.formed(next, time.Minute)
		if s := l.Node("a").State(); s.Seeds != seeds+1 {
			t.Errorf("the copy was not made anew: %+v", s)
		}
		if q, err := marks.Open(l.dirs["a"]).Quarantine(); err != nil || q.Why != "" {
			t.Errorf("%+v, %v", q, err)
		}
	})
}

// The disk that lost a write may not take the mark of the quarantine, either. It is written once the disk is well.
func TestMarkOfAQuarantineIsTriedAgain(t *testing.T) {
	inBubble(t, func(l *lab) {
		blocks := filepath.Join(l.dirs["c"], "quarantine.json"+durable.Suffix)
		if err := os.Mkdir(blocks, 0o700); err != nil {
			t.Fatal(err)
		}
		l.probes["c"].find(agent.Findings{Lost: "fsync: EIO"})
		l.wait("c is quarantined", 20*time.Second, func() bool {
			r, _ := l.Record.Snapshot().Group.Replica("c")
			return r.Suspended && l.agents["c"].View().Local.Quarantine != ""
		})
		time.Sleep(30 * time.Second)
		if q, err := marks.Open(l.dirs["c"]).Quarantine(); err != nil || q.Why != "" {
			t.Fatalf("it was written: %+v %v", q, err)
		}
		if err := os.Remove(blocks); err != nil {
			t.Fatal(err)
		}
		l.wait("the mark is written", 10*time.Second, func() bool {
			q, err := marks.Open(l.dirs["c"]).Quarantine()
			return err == nil && q.Why == "fsync: EIO" && q.Suspended
		})
	})
}

// A mark that the disk did not take is kept beside. The next agent believes it, and writes it to the disk.
func TestMarkOfAQuarantineBesideTheDisk(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.stop("c")
		l.suspend("c", true) // the group was told, so nothing of the mark changes
		m, beside := marks.Open(l.dirs["c"]), l.TempDir()
		held, err := m.Copy()
		if err != nil {
			t.Fatal(err)
		}
		if err := marks.Open(beside).SetQuarantine(marks.Quarantine{Copy: held.Copy, Why: "fsync: EIO", Suspended: true}); err != nil {
			t.Fatal(err)
		}
		l.wrap = func(c *agent.Config) { c.Marks = marks.Open(l.dirs["c"]).Beside(beside) }
		l.start("c")
		l.wait("the mark is on the disk", 10*time.Second, func() bool {
			q, err := m.Quarantine()
			return err == nil && q.Why == "fsync: EIO"
		})
		if why := l.agents["c"].View().Local.Quarantine; why != "fsync: EIO" {
			t.Errorf("it is trusted: %q", why)
		}
	})
}

// A server is not started before the log of the last one was read, however long that takes: its storage may have lost a
// write.
func TestALostWriteIsNoticedBeforeTheNextStart(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.probes["c"].autopsy, l.probes["c"].slow = agent.CrashReport{Lost: "PANIC: could not fdatasync"}, 3*time.Second
		l.Node("c").Crash()
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if l.Node("c").State().Running {
				t.Fatal("started before it was known why the server had ended")
			}
		}
		if why := l.agents["c"].View().Local.Quarantine; why == "" {
			t.Error("not under quarantine")
		}
		l.stop("c") // nor when the agent was started again
		l.start("c")
		time.Sleep(20 * time.Second)
		if l.Node("c").State().Running {
			t.Error("started under quarantine")
		}
	})
}

// A lost write is noticed by an agent that may not act under its name yet, as after a restart of its machine. The copy
// that is resumed is made anew all the same.
func TestALostWriteIsNoticedInAnotherPlace(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.kill("c")
		l.probes["c"].autopsy = agent.CrashReport{Lost: "PANIC: could not fsync"}
		l.wrap = func(c *agent.Config) { c.Place = "elsewhere" }
		l.start("c")
		l.wait("c is suspended", time.Minute, func() bool {
			r, _ := l.Record.Snapshot().Group.Replica("c")
			return r.Suspended && l.agents["c"].View().Local.Quarantine != ""
		})
		time.Sleep(time.Second) // the mark says that the group knows
		seeds := l.Node("c").State().Seeds
		l.suspend("c", false) // coterie replica resume
		l.formed("a", time.Minute)
		if s := l.Node("c").State(); s.Seeds != seeds+1 {
			t.Errorf("the copy was not made anew: %+v", s)
		}
	})
}

func TestAnOperatorTrustsACopy(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.probes["c"].find(agent.Findings{Lost: "fsync: EIO"})
		l.wait("c is quarantined", 20*time.Second, func() bool {
			r, _ := l.Record.Snapshot().Group.Replica("c")
			return r.Suspended && l.agents["c"].View().Local.Quarantine != ""
		})
		seeds := l.Node("c").State().Seeds
		ctx, cancel := context.WithTimeout(l.Context(), 5*time.Second)
		defer cancel()
		if why, err := l.agents["c"].Trust(ctx); err != nil || !strings.Contains(why, "EIO") {
			t.Errorf("%q, %v", why, err)
		}
		l.suspend("c", false)
		l.formed("a", time.Minute)
		if s := l.Node("c").State(); s.Seeds != seeds {
			t.Errorf("made anew although it is trusted: %+v", s)
		}
	})
}

func TestStartsAreFurtherApartWhileTheyFail(t *testing.T) {
	inBubble(t, func(l *lab) {
		n := l.Node("c")
		before := n.State().Starts
		for end := time.Now().Add(4 * time.Minute); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
			if n.State().Running {
				n.Crash()
			}
		}
		if k := n.State().Starts - before; k > 14 {
			t.Errorf("%d starts in four minutes", k)
		}
		l.formed("a", 3*time.Minute)
	})
}
