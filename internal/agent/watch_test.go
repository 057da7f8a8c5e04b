package agent_test

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Nothing but renewals: the record is read for the sake of the clock only.
func TestRenewalsDoNotTurnTheLoop(t *testing.T) {
	inBubble(t, func(l *lab) {
		time.Sleep(10 * time.Second)
		reads := map[ag.ReplicaID]int{}
		for _, id := range l.ids {
			reads[id] = l.Node(id).Store.Calls("read")
		}
		time.Sleep(time.Minute)
		for id, most := range map[ag.ReplicaID]int{"a": 75, "b": 30, "c": 30} {
			if n := l.Node(id).Store.Calls("read") - reads[id]; n > most {
				t.Errorf("%s read the record %d times in an idle minute, more than %d", id, n, most)
			}
			if v := l.agents[id].View(); v.Silence > 2*time.Second {
				t.Errorf("%s: silent for %v", id, v.Silence)
			}
		}
	})
}

// A watch without events is not silence of the leader: the record is read before any leader is deposed.
func TestDeafWatchIsNoSilence(t *testing.T) {
	inBubble(t, func(l *lab) {
		was := l.epoch()
		for _, id := range l.ids {
			l.Node(id).Store.Deafen(true)
		}
		time.Sleep(30 * time.Second)
		l.write("a")
		if l.epoch() != was {
			t.Errorf("epoch %d after %d", l.epoch(), was)
		}
	})
}

// The content of a renewal counts, from the watch or from a read: a release takes effect at once.
func TestReleaseTurnsTheLoop(t *testing.T) {
	inBubble(t, func(l *lab) {
		time.Sleep(10*time.Second + 100*time.Millisecond)
		at := boottime.Now()
		l.Node("a").Crash()
		l.leader(10*time.Second, "a")
		if took := boottime.Now() - at; took > time.Second {
			t.Errorf("took %v", took)
		}
	})
}
