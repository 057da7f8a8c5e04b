package link

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// idlePath is a far path with a link that carries nothing, heartbeat by heartbeat, with losses by chance.
type idlePath struct {
	r        *rand.Rand
	ch       chooser
	w        lossWindow
	at       time.Duration
	armed    bool
	watch    int // of each side, in the heartbeat to come
	answered int // datagrams of one direction
}

// beat is a second in which that share of the packets is lost.
func (i *idlePath) heartbeat(loss float64) {
	legs := 1
	if i.armed {
		legs = 3
	}
	sent, lost := uint64(4*(legs+i.watch)), uint64(0) // both sides ping, and both answer
	for range sent {
		if i.r.Float64() < loss {
			lost++
		}
	}
	i.answered += int(sent) / 2
	i.at += time.Second
	i.w.add(sent, lost)
	i.watch = i.w.watch(true, sent, i.armed)
	m := measure{trip: 60 * time.Millisecond, congestion: "bbr"}
	m.sent, m.lost = i.w.sum()
	i.armed = i.ch.next(i.at, m).Hedge
}

// until beats until the hedge is armed, or is not, and returns how often; at most so many times.
func (i *idlePath) until(armed bool, loss float64, most int) (beats int) {
	for i.armed != armed && beats < most {
		i.heartbeat(loss)
		beats++
	}
	return beats
}

// TestWatch holds that the state of an idle path is known when traffic comes, at the cost of a few datagrams a second.
// A lossy path is recognised soon after it is opened, and stays so for as long as it loses packets. A path that turns
// lossy while nothing travels is recognised, too.
func TestWatch(t *testing.T) {
	t.Parallel()
	const minutes = 10 * 60
	var opened, turned, calmed []int
	for seed := range uint64(100) {
		i := &idlePath{r: rand.New(rand.NewPCG(seed, 76)), ch: chooser{prefer: PreferAuto, calm: 30 * time.Second}}
		opened = append(opened, i.until(true, 0.01, 200))
		i.answered = 0
		for n := range minutes {
			if i.heartbeat(0.01); !i.armed {
				t.Fatalf("seed %d: not known as lossy after %d s without traffic", seed, n)
			}
		}
		if perSecond := i.answered / minutes; perSecond > 12 {
			t.Errorf("seed %d: %d datagrams a second on a lossy path", seed, perSecond)
		}
		calmed = append(calmed, i.until(false, 0, 300))
		i.answered = 0
		for range minutes {
			i.heartbeat(0)
		}
		if perSecond := i.answered / minutes; i.armed || perSecond > 8 {
			t.Errorf("seed %d: lossy %t, %d datagrams a second on a path without loss", seed, i.armed, perSecond)
		}
		turned = append(turned, i.until(true, 0.01, 300))
	}
	for name, c := range map[string]struct {
		beats     []int
		mid, most int
	}{"opened": {opened, 10, 60}, "turned lossy": {turned, 20, 90}, "turned calm": {calmed, 60, 90}} {
		slices.Sort(c.beats)
		t.Logf("%s: known after %d s in the middle, %d at most", name, c.beats[len(c.beats)/2], c.beats[len(c.beats)-1])
		if c.beats[len(c.beats)/2] > c.mid || c.beats[len(c.beats)-1] > c.most {
			t.Errorf("%s: %v", name, c.beats)
		}
	}
}
