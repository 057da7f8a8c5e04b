package ledger

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/measure/session"
)

func TestTimelineAndOutagesByClient(t *testing.T) {
	l := &Ledger{clients: map[int]*account{}, epoch: clock{boottime.Now(), time.Now().Round(0)}}
	ms := func(n int) time.Duration { return l.epoch.boot + time.Duration(n)*time.Millisecond }
	for client, acks := range [][]int{{0, 50, 120, 900}, {30, 130, 400, 950}} {
		a := &account{}
		for _, at := range acks {
			a.entries = append(a.entries, entry{sent: ms(at), done: ms(at), concluded: true, outcome: session.OK})
			l.lastAck = max(l.lastAck, ms(at))
		}
		l.clients[client] = a
	}
	l.clients[0].entries = append(l.clients[0].entries, entry{sent: ms(20), done: ms(990), concluded: true, outcome: session.Fail})
	l.segments = []segment{{start: ms(0), end: ms(1000)}}
	begin, counts := l.Timeline(100 * time.Millisecond)
	want := []int64{3, 2, 0, 0, 1, 0, 0, 0, 0, 2}
	if len(counts) != len(want) || !begin.Equal(l.epoch.time(ms(0))) {
		t.Fatalf("from %v: %v", begin, counts)
	}
	for i, n := range want {
		if counts[i] != n {
			t.Errorf("step %d: %d, want %d", i, counts[i], n)
		}
	}
	each := l.OutagesByClient(l.epoch.time(ms(300)), l.epoch.time(ms(800)))
	if each[0] != 780*time.Millisecond || each[1] != 550*time.Millisecond {
		t.Errorf("outages %v", each)
	}
	if _, counts := (&Ledger{}).Timeline(time.Second); counts != nil {
		t.Errorf("of nothing: %v", counts)
	}
}
