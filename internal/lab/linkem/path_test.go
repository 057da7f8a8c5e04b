package linkem

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const ms = nanos(time.Millisecond)

func testPath(s Shape) *path { return newPath(1, "a", "b", s) }

// TestRateSendsOneAfterTheOther: 1500 bytes at 12 Mbit/s take a millisecond.
func TestRateSendsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	p := testPath(Shape{Delay: 10 * time.Millisecond, RateBits: 12_000_000, Queue: 4500})
	for i, want := range []nanos{11 * ms, 12 * ms, 13 * ms} {
		if f := p.admit(0, 1, 1500); f.verdict != deliver || f.due != want {
			t.Fatalf("packet %d: %+v, want %v", i, f, want)
		}
	}
	if f := p.admit(0, 1, 1500); f.verdict != queueFull || p.count.queueDrops.Load() != 1 {
		t.Errorf("a fourth in a queue of three: %+v", f)
	}
	if f := p.admit(ms/2, 1, 1500); f.verdict != queueFull {
		t.Errorf("and before the first has left: %+v", f)
	}
	if f := p.admit(ms, 1, 1500); f.verdict != deliver || f.due != 14*ms {
		t.Errorf("after it has: %+v", f)
	}
	if got := p.waiting(2 * ms); got != 3000 {
		t.Errorf("%d bytes wait, want 3000", got)
	}
	if f := p.admit(100*ms, 1, 1500); f.due != 111*ms {
		t.Errorf("after a pause: %+v", f)
	}
	small := testPath(Shape{RateBits: 12_000_000, Queue: 10})
	if f := small.admit(0, 1, 1500); f.verdict != deliver {
		t.Errorf("an idle link takes any packet: %+v", f)
	}
}

// TestRateIsExact: rounding must not add up.
func TestRateIsExact(t *testing.T) {
	t.Parallel()
	for _, rate := range []int64{9600, 20_000_000, 100_000_000, 1_000_000_000, 10_000_000_000} {
		p := testPath(Shape{RateBits: rate, Queue: maxQueue})
		const n, size = 1000, 1500
		var f fate
		for range n {
			f = p.admit(0, 1, size)
		}
		want := float64(n*size*8) / float64(rate)
		if got := time.Duration(f.due).Seconds(); got < 0.999*want || got > 1.001*want {
			t.Errorf("%d bit/s: %v s for %d packets, want %v", rate, got, n, want)
		}
	}
}

func TestJitterKeepsOrder(t *testing.T) {
	t.Parallel()
	p := testPath(Shape{Delay: 20 * time.Millisecond, Jitter: 5 * time.Millisecond})
	last, low, high := nanos(0), nanos(1<<60), nanos(0)
	for i := range nanos(5000) {
		now := i * 20 * ms // far apart, so that none waits for the one before
		f := p.admit(now, 1, 100)
		if f.due < last {
			t.Fatalf("packet %d overtakes", i)
		}
		last, low, high = f.due, min(low, f.due-now), max(high, f.due-now)
	}
	if low < 15*ms || low > 16*ms || high > 25*ms || high < 24*ms {
		t.Errorf("delays from %v to %v, want 15 to 25 ms", time.Duration(low), time.Duration(high))
	}
	for i := range nanos(5000) { // close together
		f := p.admit(200_000*ms+i*ms/10, 1, 100)
		if f.due < last {
			t.Fatalf("packet %d overtakes", i)
		}
		last = f.due
	}
}

func TestReorderedAreOvertaken(t *testing.T) {
	t.Parallel()
	p := testPath(Shape{Delay: 20 * time.Millisecond, Reorder: 0.1})
	held := 0
	for i := range nanos(1000) {
		f := p.admit(i*ms, 1, 100)
		want := i*ms + 20*ms
		if !f.ordered {
			held++
			want += 5 * ms
		}
		if f.due != want {
			t.Fatalf("packet %d (ordered %t) arrives at %v, want %v", i, f.ordered, time.Duration(f.due), time.Duration(want))
		}
	}
	if held < 60 || held > 140 || p.count.reordered.Load() != uint64(held) {
		t.Errorf("%d of 1000 held back, %d counted", held, p.count.reordered.Load())
	}
}

// TestSeedRepeats: the fate of the n-th packet depends on the seed and the names alone.
func TestSeedRepeats(t *testing.T) {
	t.Parallel()
	s := Shape{Delay: 10 * time.Millisecond, Jitter: time.Millisecond, Loss: 0.1, Burst: 3, Reorder: 0.1, Duplicate: 0.1, Corrupt: 0.1}
	same, other, back := newPath(7, "a", "b", s), newPath(8, "a", "b", s), newPath(7, "b", "a", s)
	first := newPath(7, "a", "b", s)
	otherSame, backSame := true, true
	for i := range nanos(1000) {
		f := first.admit(i*ms, 1, 100)
		if g := same.admit(i*ms, 1, 100); f != g {
			t.Fatalf("packet %d: %+v, then %+v", i, f, g)
		}
		otherSame = otherSame && f == other.admit(i*ms, 1, 100)
		backSame = backSame && f == back.admit(i*ms, 1, 100)
	}
	if otherSame || backSame {
		t.Error("another seed, or the other direction, throws the same dice")
	}
}

// under builds what a port would hold after n packets of 1500 bytes at time 0.
func under(p *path, n int) (all []*packet) {
	for i := range n {
		f := p.admit(0, 1, 1500)
		p.underWay++
		all = append(all, &packet{due: f.due, left: f.left, order: uint64(i), path: p, packets: 1, size: 1500, ordered: f.ordered})
	}
	return all
}

func TestNewShapeAppliesToWhatWaits(t *testing.T) {
	t.Parallel()
	p := testPath(Shape{Delay: 10 * time.Millisecond, RateBits: 12_000_000, Queue: 1 << 20})
	all := under(p, 4) // leave at 1, 2, 3, 4 ms
	p.want.Store(&Shape{Delay: 20 * time.Millisecond, RateBits: 6_000_000})
	if !p.reshape(3*ms/2, all) {
		t.Fatal("nothing arrives any more")
	}
	for i, want := range []nanos{11 * ms, 22 * ms, 24 * ms, 26 * ms} { // the first is on the wire, the second partly
		if all[i].due != want {
			t.Errorf("packet %d arrives at %v, want %v", i, time.Duration(all[i].due), time.Duration(want))
		}
	}
	if f := p.admit(2*ms, 1, 1500); f.due != 28*ms {
		t.Errorf("the next arrives at %v, want 28 ms", time.Duration(f.due))
	}
	p.want.Store(&Shape{})
	p.reshape(3*ms, all)
	for i, want := range []nanos{11 * ms, 22 * ms, 22 * ms, 22 * ms} { // without rate and delay, but behind what is on the wire
		if all[i].due != want {
			t.Errorf("unlimited: packet %d arrives at %v, want %v", i, time.Duration(all[i].due), time.Duration(want))
		}
	}
	if got := p.waiting(3 * ms); got != 0 {
		t.Errorf("%d bytes wait on an unlimited link", got)
	}
}

func TestCutTakesWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	for _, s := range []Shape{{Cut: true}, {Reject: true}} {
		p := testPath(Shape{Delay: 10 * time.Millisecond, RateBits: 12_000_000})
		all := under(p, 4)
		p.want.Store(&s)
		if p.reshape(ms, all) || p.underWay != 0 || p.count.blocked.Load() != 4 {
			t.Errorf("%v: %d under way, %d blocked", s, p.underWay, p.count.blocked.Load())
		}
		f := p.admit(2*ms, 1, 100)
		if f.verdict != blocked && f.verdict != rejected {
			t.Errorf("%v: %+v", s, f)
		}
		p.want.Store(&Shape{})
		p.reshape(3*ms, nil)
		if f := p.admit(4*ms, 1, 100); f.verdict != deliver || f.due != 4*ms {
			t.Errorf("healed: %+v", f)
		}
	}
}

func TestAgendaIsInOrder(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	var a agenda
	var want []*packet
	compare := func(x, y *packet) int {
		if x.before(y) {
			return -1
		}
		return 1
	}
	for i := range 2000 {
		q := &packet{due: nanos(r.IntN(200)), order: uint64(i)}
		a.push(q)
		want = append(want, q)
		if r.IntN(3) == 0 {
			slices.SortFunc(want, compare)
			if got := a.pop(); got != want[0] {
				t.Fatalf("got %+v, want %+v", got, want[0])
			}
			want = want[1:]
		}
		if r.IntN(500) == 0 {
			for _, q := range want {
				q.due = nanos(r.IntN(200))
			}
			a.heal()
		}
	}
	slices.SortFunc(want, compare)
	for _, q := range want {
		if got := a.pop(); got != q {
			t.Fatalf("got %+v, want %+v", got, q)
		}
	}
	if len(a) != 0 {
		t.Errorf("%d left", len(a))
	}
}
