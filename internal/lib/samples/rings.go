package samples

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// Span is a stretch of time that is kept, in slots of one length.
type Span struct {
	Step  time.Duration
	Slots int
}

// Hour and Day are the spans that Rings keep of each series.
var (
	Hour = Span{Step: 5 * time.Second, Slots: 720}
	Day  = Span{Step: time.Minute, Slots: 1440}
)

// MaxSeries is how many series are kept. One more takes the place of the one that was silent longest, and is left out
// while every other one is of this moment.
const MaxSeries = 256

// SlotBytes is the memory of one slot of a series: the mean and the highest value.
const SlotBytes = 8

// Key names a series: what it measures, and of what.
type Key struct{ Name, Of string }

// Rings keep the values of series. The zero value is empty and ready. One goroutine uses it at a time.
type Rings struct {
	series map[Key]*series
	newest [2]int64 // the slots of the latest values, by span
	begun  bool
	first  time.Duration
}

// spans are those of every series, in the order of its rings.
var spans = [2]Span{Hour, Day}

type series struct {
	last  time.Duration // when it had a value
	rings [2]ring
}

// ring has the slots of a span: that of slot n is at n modulo the number of slots.
type ring struct {
	mean, highest []float32 // NaN: no value
	count         int       // of the values in the newest slot
}

// Take takes the values of a moment. Moments are counted on any clock that does not go backwards; one before the latest
// is left out, and so is a value that is no number.
func (r *Rings) Take(at time.Duration, values map[Key]float64) {
	if at < 0 || r.begun && int64(at/Hour.Step) < r.newest[0] {
		return
	}
	if !r.begun {
		r.begun, r.first, r.series = true, at, map[Key]*series{}
		for i, s := range spans {
			r.newest[i] = int64(at / s.Step)
		}
	}
	for i, s := range spans {
		r.advance(i, int64(at/s.Step))
	}
	for _, key := range slices.SortedFunc(maps.Keys(values), compareKeys) {
		v := float32(values[key])
		if !isNumber(v) {
			continue
		}
		x := r.series[key]
		if x == nil {
			if x = r.place(at, values); x == nil {
				continue
			}
			r.series[key] = x
		}
		x.last = at
		for i := range spans {
			x.rings[i].put(r.newest[i], v)
		}
	}
}

// advance makes to the newest slot of a span. The slots between have no values.
func (r *Rings) advance(span int, to int64) {
	from, slots := r.newest[span], int64(spans[span].Slots)
	if to == from {
		return
	}
	r.newest[span] = to
	for _, x := range r.series {
		g := &x.rings[span]
		g.count = 0
		for n := max(from+1, to-slots+1); n <= to; n++ {
			g.mean[n%slots], g.highest[n%slots] = nan, nan
		}
	}
}

// place returns an empty series; nil if there is no place for one more. A series that has no value at this moment gives
// its place up, the one that was silent longest first.
func (r *Rings) place(at time.Duration, values map[Key]float64) *series {
	if len(r.series) >= MaxSeries {
		oldest, found := Key{}, false
		for key, x := range r.series {
			if _, now := values[key]; !now && x.last < at && (!found || x.last < r.series[oldest].last) {
				oldest, found = key, true
			}
		}
		if !found {
			return nil
		}
		delete(r.series, oldest)
	}
	x := &series{}
	for i, s := range spans {
		x.rings[i] = ring{mean: empty(s.Slots), highest: empty(s.Slots)}
	}
	return x
}

// put adds a value to a slot, which is the newest one.
func (g *ring) put(slot int64, v float32) {
	i := slot % int64(len(g.mean))
	if g.count++; g.count == 1 {
		g.mean[i], g.highest[i] = v, v
		return
	}
	g.mean[i] += (v - g.mean[i]) / float32(g.count)
	g.highest[i] = max(g.highest[i], v)
}

// Series is a series as it is read: the values of its slots, the oldest first.
type Series struct {
	Key
	Mean, Highest Values
}

// Read returns the series of a span that have a value in it, sorted by their names, with as many slots as have passed
// since the first moment and at most those of the span. end is the end of the newest slot, on the clock of Take.
func (r *Rings) Read(s Span) (list []Series, slots int, end time.Duration) {
	span := slices.Index(spans[:], s)
	if span < 0 || !r.begun {
		return nil, 0, 0
	}
	newest := r.newest[span]
	slots = int(min(newest-int64(r.first/s.Step)+1, int64(s.Slots)))
	for _, key := range slices.SortedFunc(maps.Keys(r.series), compareKeys) {
		g := r.series[key].rings[span]
		out := Series{Key: key, Mean: make(Values, slots), Highest: make(Values, slots)}
		some := false
		for i := range slots {
			at := (newest - int64(slots-1-i)) % int64(s.Slots)
			out.Mean[i], out.Highest[i] = g.mean[at], g.highest[at]
			some = some || isNumber(g.mean[at])
		}
		if some {
			list = append(list, out)
		}
	}
	return list, slots, time.Duration(newest+1) * s.Step
}

func compareKeys(a, b Key) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Of, b.Of)) }

func isNumber(v float32) bool { return !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0) }

var nan = float32(math.NaN())

func empty(n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = nan
	}
	return out
}
