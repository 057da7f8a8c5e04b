package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/measure/ledger"
	"github.com/coteriedb/coterie/internal/measure/register"
)

// asked bounds what an operator waits for in the middle of a storm. A request that is still under way then may have
// its effect later.
const asked = 20 * time.Second

// asIs are the settings of the group that a storm changes, as they are at first.
const asIs = "ALTER AVAILABILITY GROUP [lab] SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 1, COMMIT_BARRIER = DEFAULT, FAILURE_DETECTION = FAST, CONTINUITY = SESSION)"

// change has an operator change the configuration, at any node. A refusal is part of its name.
func (s *storm) change(node string) (string, func() error) {
	of := s.any("n1", "n2", "n3")
	text := "ALTER AVAILABILITY GROUP [lab] " + s.any(
		"SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 0)",
		"SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 2)",
		"MODIFY REPLICA ON N'"+of+"' WITH (AVAILABILITY_MODE = ASYNCHRONOUS_COMMIT, FAILOVER_MODE = MANUAL)",
		"MODIFY REPLICA ON N'"+of+"' WITH (AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC)",
		"MODIFY REPLICA ON N'"+of+"' WITH (FAILOVER_MODE = MANUAL)",
		"MODIFY REPLICA ON N'"+of+"' WITH (SECONDARY_ROLE (ALLOW_CONNECTIONS = NO))",
		"SET (COMMIT_BARRIER = STRICT)",
		"SET (FAILURE_DETECTION = STRICT)",
		"SET (FAILURE_DETECTION = ADAPTIVE(500))",
		"SET (CONTINUITY = REPLAY)",
		"SET (CONTINUITY = OFF)",
		"SUSPEND REPLICA ON N'"+of+"'",
		"RESUME REPLICA ON N'"+of+"'",
	)
	s.changed = true
	return node + " is told " + strings.TrimPrefix(text, "ALTER AVAILABILITY GROUP [lab] "), func() error { return s.tell(node, text) }
}

// tell runs a statement at a node.
func (s *storm) tell(node, text string) error {
	l, err := config.NewLayout(s.node(node))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), asked)
	defer cancel()
	a, err := api.NewClient(l.AgentSock(), l.Owner()).SQL(ctx, text)
	if err == nil && a.Error != nil {
		err = fmt.Errorf("%s", a.Error)
	}
	return err
}

// operate runs a command for as long as an operator would wait.
func (s *storm) operate(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), asked)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Dir, cmd.WaitDelay = "/", 5*time.Second
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return fmt.Errorf("%w: %s", err, lines[len(lines)-1])
}

// acceptedLoss is a forced failover that was asked for: what was acknowledged before it may be lost.
type acceptedLoss struct {
	asked, open time.Duration // open: when it is known that the new primary serves
	at          time.Time     // the same moment as open
}

// force has an operator accept the loss of data, at a node that is to lead, without --now: it opens when the old
// primary can answer no client any more.
func (s *storm) force(node string) (string, func() error) {
	return "force " + node, func() error {
		if s.loss == nil {
			s.loss = &acceptedLoss{asked: boottime.Now()}
		}
		s.changed = true // the other copies are suspended by it
		err := s.operate("failover", "--to", node, "--allow-data-loss", "--yes", "--node", s.node(node))
		s.loss.open, s.loss.at = 0, time.Time{}
		if err == nil {
			s.loss.open, s.loss.at = boottime.Now(), time.Now()
		}
		return err
	}
}

// putBack gives the group the settings that it had at first, and has every replica follow.
func (s *storm) putBack(t *testing.T) {
	t.Helper()
	if !s.changed {
		return
	}
	var last error
	defer func() {
		if t.Failed() {
			t.Logf("the settings were not put back: %v", last)
		}
	}()
	s.await(t, "the settings are as they were at first", func(now lab.Status) bool {
		if now.Primary == nil {
			last = s.resumeAll(t, "n1")
			return false
		}
		last = errors.Join(s.tell(*now.Primary, asIs), s.resumeAll(t, *now.Primary))
		for _, r := range now.Replicas {
			last = errors.Join(last, s.tell(*now.Primary, "ALTER AVAILABILITY GROUP [lab] MODIFY REPLICA ON N'"+r.Name+
				"' WITH (AVAILABILITY_MODE = SYNCHRONOUS_COMMIT, FAILOVER_MODE = AUTOMATIC, SECONDARY_ROLE (ALLOW_CONNECTIONS = READ_ONLY))"))
		}
		return last == nil
	})
	s.changed = false
}

// resumeAll resumes every replica that a node says is suspended.
func (s *storm) resumeAll(t *testing.T, node string) error {
	t.Helper()
	now, err := s.status(t, node)
	if err != nil {
		return err
	}
	for _, r := range now.Replicas {
		if r.Suspended {
			err = errors.Join(err, s.operate("resume", string(r.Name), "--node", s.node(node)))
		}
	}
	return err
}

// judgeForced judges what clients were told before and after a forced failover, each by itself, and begins a new
// history. Rows that were acknowledged before may be lost; that no two primaries answered, and everything later, is
// promised.
func (s *storm) judgeForced(t *testing.T) {
	t.Helper()
	f := s.loss
	s.loss = nil
	if f.open == 0 {
		f.open, f.at = boottime.Now(), time.Now()
	}
	s.progress(t, 200)
	s.stop(t)
	s.group.end()
	if err := <-s.ended; err != nil {
		t.Errorf("writer: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	v, err := s.ledger.Verify(ctx, s.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	if !v.SoundSince(f.at) {
		t.Errorf("beside what the operator accepted, the group did not keep its promises: %v %v", v, v.LostIDs)
	}
	history, seen := s.load.History()
	before, undecided := register.CheckUntil(history, f.asked, judging)
	since, more := register.CheckSince(history, f.open, judging)
	for _, b := range append(before, since...) {
		t.Errorf("register %d is not linearizable before or after a forced failover, asked for at %v and open at %v:", b.Key, f.asked, f.open)
		for _, o := range b.History {
			t.Log(o)
		}
	}
	var early, late []register.Sighting
	for _, x := range seen {
		if x.At < f.asked {
			early = append(early, x)
		} else if x.At > f.open {
			late = append(late, x)
		}
	}
	for _, x := range append(register.Backwards(early), register.Backwards(late)...) {
		t.Errorf("session %d at %s saw the count go back to %d, at %s", x.Session, x.Host, x.Count, x.Server)
	}
	s.cut.verify(t, s.ReadWrite(), f.open)
	s.intruder.verify(t, s.ReadWrite())
	s.equal(t)
	s.say(t, "     forced: %d of %d acknowledged rows are lost; %d operations on registers, %d undecided; %d looks at the count; %d commits cancelled; %d writes tried by readers",
		v.Lost, v.Acknowledged, len(history), undecided+more, len(seen), s.cut.cancelled, s.intruder.tried.Load())
	s.beginAgain(t)
}

// beginAgain gives all clients a new history.
func (s *storm) beginAgain(t *testing.T) {
	t.Helper()
	_ = s.ledger.Close()
	s.eras++
	var err error
	if s.ledger, err = ledger.Open(filepath.Join(filepath.Dir(s.Dir()), fmt.Sprintf("ledger after force %d", s.eras))); err != nil {
		t.Fatal(err)
	}
	s.write(t)
	s.begin(t, s.seed+uint64(s.eras))
}
