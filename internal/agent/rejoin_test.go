package agent_test

import (
	"errors"
	"testing"
	"time"
)

// diverge leaves a with a tail that no other member has, and makes another lead.
func (l *lab) diverge() {
	l.Helper()
	l.write("a")
	l.Isolate("a", true)
	if err := l.WriteWithin("a", time.Second); err == nil {
		l.Error("a commit that nobody else has was acknowledged")
	}
	l.write(l.leader(20*time.Second, "a"))
	l.Isolate("a", false)
}

func TestDivergedCopyIsRewound(t *testing.T) {
	inBubble(t, func(l *lab) {
		old := l.Node("a").State().Copy
		l.diverge()
		l.formed(l.leader(10*time.Second, "a"), time.Minute)
		s := l.Node("a").State()
		if s.Rewinds != 1 || s.Seeds != 0 || len(s.Forks) != 1 {
			t.Errorf("%+v", s)
		}
		if s.Copy == old {
			t.Error("a rewound copy kept its identity")
		}
	})
}

func TestFailedRewindLeadsToReseed(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.Node("a").Fail("rewind", errors.New("WAL is missing"))
		l.diverge()
		l.formed(l.leader(10*time.Second, "a"), time.Minute)
		if s := l.Node("a").State(); s.Rewinds != 1 || s.Seeds != 1 || len(s.Forks) == 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestCountedCopyIsNotTouched(t *testing.T) {
	inBubble(t, func(l *lab) {
		l.write("a")
		n, touched := l.Node("c"), false
		n.Before("rewind", func() {
			touched = true
			if l.counted("c") {
				t.Error("a copy was rewound while the record counted it")
			}
		})
		l.stop("c")
		n.Tamper()
		l.start("c")
		time.Sleep(3 * time.Second)
		if !l.counted("c") {
			t.Error("c was dropped at once; the test shows nothing")
		}
		l.formed("a", time.Minute)
		l.wait("c streams again", time.Minute, func() bool { return n.State().Receiving && l.counted("c") })
		if !touched {
			t.Error("c was not rewound")
		}
	})
}
