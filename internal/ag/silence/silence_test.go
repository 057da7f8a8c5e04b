package silence

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

const (
	ms   = time.Millisecond
	beat = 100 * ms
)

var limits = Limits{Floor: 1500 * ms, Most: 6500 * ms}

// trace drives a detector as an observer does: it looks at every beat whether the silence is unusual.
type trace struct {
	d         Detector
	now       time.Duration
	suspected []Judgement
}

// until lets time pass, in which the observer looks at every beat and is late by as much as late returns each time.
func (x *trace) until(at time.Duration, late func() time.Duration) {
	for x.now < at {
		due := min(x.now+beat, at)
		x.now = due
		if late != nil {
			by := late()
			x.now += by
			x.d.Late(x.now, by)
		}
		x.judge()
	}
}

func (x *trace) judge() {
	if j := x.d.Judge(x.now, limits); j.Suspect {
		x.suspected = append(x.suspected, j)
	}
}

// beats lets the member beat for so long; each beat comes later by what delay returns, and in order.
func (x *trace) beats(long time.Duration, delay func() time.Duration) {
	end := x.now + long
	for due := x.now + beat; due <= end; due += beat {
		x.until(max(x.now, due+delay()), nil)
		x.d.Beat(x.now)
	}
}

func none() time.Duration { return 0 }

// detection returns how long after the last beat the silence of a dead member is found.
func (x *trace) detection() time.Duration {
	from, had := x.d.heard, len(x.suspected)
	for x.now < from+10*time.Second && len(x.suspected) == had {
		x.now += ms
		x.judge()
	}
	return x.now - from
}

func (x *trace) calm(t *testing.T, most time.Duration) {
	t.Helper()
	if len(x.suspected) > 0 {
		t.Fatalf("suspected %d times, first: %s", len(x.suspected), x.suspected[0].Words())
	}
	if took := x.detection(); took < limits.Floor || took > most {
		t.Errorf("a death would be found after %v: %+v", took, x.d.Judge(x.now, limits))
	}
}

func start() *trace { return &trace{now: time.Hour} }

func TestSteady(t *testing.T) {
	x := start()
	x.beats(5*time.Minute, none)
	x.calm(t, 1650*ms)
}

func TestJitter(t *testing.T) {
	x, r := start(), rand.New(rand.NewPCG(1, 2))
	x.beats(10*time.Minute, func() time.Duration { return time.Duration(r.Int64N(int64(200 * ms))) })
	x.calm(t, 2200*ms)
}

// A link that is away for a second every 20 seconds, and delivers then what it had queued.
func TestFlappingLink(t *testing.T) {
	x := start()
	for range 60 {
		x.beats(19*time.Second, none)
		x.until(x.now+time.Second, nil)
		for range 10 {
			x.d.Beat(x.now)
		}
	}
	x.beats(10*time.Second, none)
	x.calm(t, 1900*ms)
}

func TestPauses(t *testing.T) {
	for seed := range uint64(20) {
		x, r := start(), rand.New(rand.NewPCG(seed, 3))
		for range 60 {
			x.beats(time.Second+time.Duration(r.Int64N(int64(30*time.Second))), none)
			x.until(x.now+time.Duration(r.Int64N(int64(1500*ms))), nil)
		}
		x.beats(30*time.Second, none)
		x.calm(t, 2200*ms)
	}
}

// An observer that gets no processor hears nothing for seconds, and suspects nobody. Well again, it does.
func TestOverloadedObserver(t *testing.T) {
	x, r := start(), rand.New(rand.NewPCG(4, 4))
	x.beats(time.Minute, none)
	for range 200 {
		x.until(x.now+time.Duration(r.Int64N(int64(4*time.Second))), func() time.Duration { return time.Duration(r.Int64N(int64(400 * ms))) })
		x.d.Beat(x.now)
	}
	if len(x.suspected) > 0 {
		t.Fatalf("suspected: %s", x.suspected[0].Words())
	}
	x.beats((memory+1)*minute, none)
	x.calm(t, 1650*ms)
}

// One stop of the observer, longer than any threshold. It is not ill for long.
func TestStoppedObserver(t *testing.T) {
	x := start()
	x.beats(time.Minute, none)
	x.until(x.now+beat, func() time.Duration { return 8 * time.Second })
	if w := x.d.Judge(x.now, limits).Words(); len(x.suspected) > 0 || !strings.Contains(w, "itself was late") {
		t.Fatalf("suspected %v: %s", x.suspected, w)
	}
	x.d.Beat(x.now)
	if j := x.d.Judge(x.now, limits); j.Threshold < limits.Most {
		t.Errorf("well at once: %+v", j)
	}
	x.beats(40*time.Second, none)
	x.calm(t, 1900*ms)
}

func TestLittleHeardIsNoRhythm(t *testing.T) {
	x := start()
	x.beats((enough-1)*beat, none)
	x.until(x.now+time.Minute, nil)
	if len(x.suspected) > 0 || !strings.Contains(x.d.Judge(x.now, limits).Words(), "too little") {
		t.Errorf("%d intervals suffice", enough-1)
	}
}

func TestAnythingHeardEndsASilence(t *testing.T) {
	x := start()
	x.beats(time.Minute, none)
	for range 100 {
		x.until(x.now+time.Second, nil)
		x.d.Heard(x.now)
	}
	if len(x.suspected) > 0 {
		t.Errorf("suspected although WAL came: %s", x.suspected[0].Words())
	}
}

func TestDeclaredSilence(t *testing.T) {
	x := start()
	x.beats(time.Minute, none)
	x.d.Declare(4*time.Second, "it restarts")
	x.until(x.now+3900*ms, nil)
	if len(x.suspected) > 0 || !strings.Contains(x.d.Judge(x.now, limits).Words(), "it restarts") {
		t.Errorf("a declared silence is suspected: %v", x.suspected)
	}
	x.d.Declare(0, "")
	if j := x.d.Judge(x.now, limits); !j.Suspect || j.Declared != "" {
		t.Errorf("a declaration that was withdrawn still counts: %+v", j)
	}
}

// The rules that hold for every history: the threshold is within its limits, nothing is suspected within the floor of
// anything heard, and neither lateness nor a declaration makes a suspicion come sooner.
func TestRulesOfEveryHistory(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 5))
		var d Detector
		now := time.Duration(r.Int64N(int64(100 * time.Hour)))
		for range 500 {
			now += time.Duration(r.ExpFloat64() * float64(200*ms))
			switch r.IntN(8) {
			case 0:
				d.Heard(now)
			case 1:
				d.Late(now, time.Duration(r.Int64N(int64(time.Second))))
			case 2:
				d.Declare(time.Duration(r.Int64N(int64(5*time.Second))), "said so")
			default:
				d.Beat(now)
			}
			at := now + time.Duration(r.Int64N(int64(8*time.Second)))
			j := d.Judge(at, limits)
			if j.Threshold < limits.Floor || j.Threshold > limits.Most {
				t.Fatalf("seed %d: threshold %v", seed, j.Threshold)
			}
			if j.Suspect && (at-d.heard < limits.Floor || j.Silence <= j.Threshold || j.Late*share >= j.Silence || !j.Known) {
				t.Fatalf("seed %d: %+v", seed, j)
			}
			if j.Spread < 0 || j.Mean < 0 || j.Words() == "" {
				t.Fatalf("seed %d: %+v", seed, j)
			}
			late, declared := d, d
			late.Late(at, time.Duration(r.Int64N(int64(time.Second))))
			declared.Declare(d.declared+time.Second, "said more")
			if l := late.Judge(at, limits); l.Threshold < j.Threshold || l.Suspect && !j.Suspect {
				t.Fatalf("seed %d: lateness makes it suspicious: %+v then %+v", seed, j, l)
			}
			if l := declared.Judge(at, limits); l.Threshold < j.Threshold || l.Suspect && !j.Suspect {
				t.Fatalf("seed %d: a declaration makes it suspicious: %+v then %+v", seed, j, l)
			}
		}
	}
}
