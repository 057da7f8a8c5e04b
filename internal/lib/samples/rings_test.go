package samples

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// maxMemory is what the rings of a node may take, as the documentation says.
const maxMemory = 5_000_000

// TestMemoryIsBounded holds that the slots of as many series as there can be fit into the memory for them.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	if all := MaxSeries * (Hour.Slots + Day.Slots) * SlotBytes; all > maxMemory {
		t.Errorf("%d series take %d bytes, and may take %d", MaxSeries, all, maxMemory)
	}
	if Hour.Step*time.Duration(Hour.Slots) != time.Hour || Day.Step*time.Duration(Day.Slots) != 24*time.Hour {
		t.Error("an hour or a day is not what its name is")
	}
	var r Rings
	for i := range 3 * MaxSeries {
		values := map[Key]float64{}
		for k := range 3 {
			values[Key{"x", fmt.Sprint(i + k)}] = 1
		}
		r.Take(time.Duration(i)*Hour.Step, values)
	}
	if len(r.series) != MaxSeries {
		t.Errorf("%d series are kept", len(r.series))
	}
	list, _, _ := r.Read(Hour)
	if newest := list[len(list)-1].Of; newest == "" {
		t.Error("the newest series has no place")
	}
}

// TestASeriesOfThisMomentStays holds that a newcomer without a place is left out, and takes none of a series that has
// values now.
func TestASeriesOfThisMomentStays(t *testing.T) {
	t.Parallel()
	var r Rings
	values := map[Key]float64{}
	for i := range 2 * MaxSeries {
		values[Key{fmt.Sprintf("%04d", i), ""}] = 1
	}
	for i := range 5 {
		r.Take(time.Duration(i)*Hour.Step, values)
	}
	list, slots, _ := r.Read(Hour)
	if len(list) != MaxSeries || slots != 5 {
		t.Fatalf("%d series of %d slots", len(list), slots)
	}
	for i, s := range list {
		if s.Name != fmt.Sprintf("%04d", i) || s.Mean[0] != 1 || s.Mean[4] != 1 {
			t.Fatalf("series %d is %s: %v", i, s.Name, s.Mean)
		}
	}
}

// TestGapsAndSlots holds what becomes of values that share a slot, of time without any, and of a clock that stood still
// or that stepped far.
func TestGapsAndSlots(t *testing.T) {
	t.Parallel()
	var r Rings
	key := Key{"lag", "n2"}
	for _, x := range []struct {
		at time.Duration
		v  float64
	}{{10 * time.Minute, 1}, {10*time.Minute + time.Second, 5}, {10*time.Minute + 10*time.Second, 7}, {time.Minute, 99}, {10*time.Minute + 11*time.Second, math.NaN()}, {10*time.Minute + 12*time.Second, math.Inf(1)}} {
		r.Take(x.at, map[Key]float64{key: x.v})
	}
	r.Take(-1, map[Key]float64{key: 1})
	shows := func(s Span, want string) {
		t.Helper()
		list, slots, _ := r.Read(s)
		b, err := json.Marshal(list)
		if err != nil || string(b) != want {
			t.Errorf("%v, %d slots, %v:\n%s\nwant\n%s", s, slots, err, b, want)
		}
	}
	shows(Hour, `[{"Name":"lag","Of":"n2","Mean":[3,null,7],"Highest":[5,null,7]}]`)
	shows(Day, `[{"Name":"lag","Of":"n2","Mean":[4.333],"Highest":[7]}]`)
	shows(Span{time.Second, 3}, `null`)
	if _, _, end := r.Read(Hour); end != 10*time.Minute+15*time.Second {
		t.Errorf("the newest slot ends at %v", end)
	}
	r.Take(3*time.Hour, nil)
	shows(Hour, `null`) // nothing of the last hour
	if list, slots, _ := r.Read(Day); len(list) != 1 || slots != 171 || list[0].Highest[0] != 7 {
		t.Errorf("the day has %d series, %d slots", len(list), slots)
	}
	r.Take(100*24*time.Hour, map[Key]float64{key: 0.00012345})
	list, slots, _ := r.Read(Day)
	b, err := json.Marshal(list[0].Mean[Day.Slots-2:])
	if err != nil || slots != Day.Slots || string(b) != `[null,0.0001234]` && string(b) != `[null,0.0001235]` {
		t.Errorf("after a long sleep: %d slots, %s, %v", slots, b, err)
	}
}

// TestRingsAgainstAList compares the rings with a plain list of everything, over random moments.
func TestRingsAgainstAList(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		var r Rings
		type point struct {
			at time.Duration
			v  float64
		}
		var all []point
		at := time.Duration(random.Int64N(int64(time.Hour)))
		first := at
		for range 2000 {
			v := float64(random.IntN(1000))
			r.Take(at, map[Key]float64{{"x", ""}: v})
			all = append(all, point{at, v})
			at += time.Duration(random.Int64N(int64(20 * time.Second)))
			if random.IntN(500) == 0 {
				at += time.Duration(random.Int64N(int64(2 * time.Hour)))
			}
		}
		for _, s := range spans {
			list, slots, end := r.Read(s)
			want := min(int(int64(end/s.Step)-int64(first/s.Step)), s.Slots)
			if slots != want {
				t.Fatalf("seed %d: %d slots, want %d", seed, slots, want)
			}
			sum, count, high := make([]float64, slots), make([]float64, slots), make([]float64, slots)
			for _, p := range all {
				if i := slots - int(int64(end/s.Step)-int64(p.at/s.Step)); i >= 0 {
					sum[i], count[i], high[i] = sum[i]+p.v, count[i]+1, max(high[i], p.v)
				}
			}
			for i := range slots {
				mean, highest := float64(list[0].Mean[i]), float64(list[0].Highest[i])
				if count[i] == 0 && !math.IsNaN(mean) || count[i] > 0 && (math.Abs(mean-sum[i]/count[i]) > 0.01 || highest != high[i]) {
					t.Fatalf("seed %d, %v, slot %d: %v and %v, want %v of %v and %v", seed, s.Step, i, mean, highest, sum[i], count[i], high[i])
				}
			}
		}
	}
}
