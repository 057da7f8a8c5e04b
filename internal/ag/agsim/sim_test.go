package agsim

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// shapes are the groups a seed may draw.
var shapes = []ag.Group{
	NewGroup(3, false, ag.RuleQuorum),
	NewGroup(2, true, ag.RuleQuorum),
	NewGroup(3, false, ag.RuleAll),
	NewGroup(4, true, ag.RuleQuorum),
	NewGroup(5, false, ag.RuleQuorum),
	manual(NewGroup(3, false, ag.RuleQuorum), 1),
	manual(NewGroup(5, false, ag.RuleQuorum), 1, 3),
}

// manual is the group with these replicas promoted by a person only.
func manual(g ag.Group, replicas ...int) ag.Group {
	for _, i := range replicas {
		g.Replicas[i].FailoverMode = ag.Manual
	}
	return g
}

func shapeOf(seed uint64) ag.Group { return shapes[seed%uint64(len(shapes))] }

// TestSim plays histories; COTERIE_SEED (or SEED) repeats one and tells it.
func TestSim(t *testing.T) {
	text := os.Getenv("COTERIE_SEED") + os.Getenv("SEED")
	if text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if err := NewModel(shapeOf(seed)).Run(seed, func(line string) { fmt.Println(line) }); err != nil {
			t.Fatal(err)
		}
		return
	}
	seeds := uint64(600)
	if os.Getenv("DEEP") != "" {
		seeds = 50_000
	}
	if n, err := strconv.ParseUint(os.Getenv("COTERIE_SEEDS"), 10, 64); err == nil {
		seeds = n
	}
	begin, worked := time.Now(), processorTime(t)
	t.Run("seeds", func(t *testing.T) {
		for shard := range shards {
			t.Run(strconv.FormatUint(shard, 10), func(t *testing.T) {
				t.Parallel()
				for seed := shard; seed < seeds; seed += shards {
					if err := NewModel(shapeOf(seed)).Run(seed, nil); err != nil {
						t.Fatalf("seed %d (make sim SEED=%d tells it): %v", seed, seed, err)
					}
				}
			})
		}
	})
	t.Logf("%d histories in %v, %.0f a second of processor time", seeds, time.Since(begin).Round(time.Second), float64(seeds)/(processorTime(t)-worked).Seconds())
}

// shards is the number of tests that play the histories of TestSim, each its share of the seeds, on all processors.
const shards uint64 = 8

// TestSimHistories replays histories that ended badly once; the odds of others are drawn.
func TestSimHistories(t *testing.T) {
	for _, tt := range []struct {
		name  string
		group ag.Group
		only  odds
		seed  uint64
	}{
		{"who led last was down, and went by a seal of a copy that is gone", trioAll, odds{distrust: 60, wipe: 30}, 1462},
		{"a session is placed by what an agent said that has ended", shapeOf(175900), odds{}, 175900},
		{"the store has gone back, and voters are replaced", shapeOf(72152), odds{}, 72152},
		{"a diverged copy saw what a lost leader wrote, and another one led between them", shapeOf(176897), odds{}, 176897},
		{"the same, where the furthest copy saw less", shapeOf(196732), odds{}, 196732},
		{"a lost machine went on, and voted in the name of its successor", trio, odds{replace: 300, suspicion: 600, lostAnswer: 3000}, 60},
		{"the same among five", five, odds{replace: 300, suspicion: 600, lostAnswer: 3000}, 52},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := NewModel(tt.group)
			m.only = tt.only
			if err := m.Run(tt.seed, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSimOf plays histories of few but frequent faults, from which a group recovers only if nothing waits for ever: of
// each mix a fiftieth of COTERIE_SEEDS, so that all of them take about a fifth of the time of TestSim.
func TestSimOf(t *testing.T) {
	seeds := uint64(40)
	if n, err := strconv.ParseUint(os.Getenv("COTERIE_SEEDS"), 10, 64); err == nil {
		seeds = max(n/50, seeds)
	}
	for name, only := range map[string]odds{
		"storage that loses writes, and disks": {distrust: 60, wipe: 30},
		"configuration that changes":           {alter: 100, suspend: 40, crash: 40, planned: 80, forced: 20, cutPeer: 40},
		"members that go and come back":        {remove: 100, crash: 40, serverCrash: 20, cutPeer: 40, cutStore: 20, planned: 60, lostAnswer: 2000, suspend: 20},
		"the same, and all else changes":       {remove: 100, alter: 60, crash: 40, cutPeer: 40, planned: 40, forced: 20, wipe: 10},
		"members that are lost and replaced":   {replace: 300, suspicion: 600, lostAnswer: 3000},
		"lost members, and other faults":       {replace: 100, crash: 40, serverCrash: 20, cutPeer: 40, cutStore: 20, planned: 60, lostAnswer: 2000, suspend: 20, alter: 60, forced: 20, reject: 60},
		"timing that changes":                  {profile: 100, strict: 60, unsure: 2000, remove: 40, crash: 40, cutPeer: 40, cutStore: 40, pause: 40, reject: 60, forced: 20, restart: 30},
		"copies that have long to replay":      {slow: 200, crash: 60, serverCrash: 20, cutPeer: 40, cutStore: 20, suspicion: 200, hang: 1000},
		"the same, and crashes":                {distrust: 60, wipe: 30, crash: 40, serverCrash: 40},
		"a store that tells two stories":       {stories: 300},
		"the same, and planned failovers":      {distrust: 60, wipe: 30, planned: 80, giveUp: 3000, hang: 2000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range seeds {
				m := NewModel(shapeOf(seed))
				m.only = only
				if err := m.Run(seed, nil); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			}
		})
	}
}

// processorTime returns the processor time used by this process: on a machine with other work the time of day is no
// measure.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// unseen are the rules that neither explorer nor simulator fires, with the reason. The tables of package ag fire every
// rule.
var unseen = map[ag.Rule]string{
	ag.RuleReread: "every log can be read in this world; TestEndToEndReread damages a real one",
}

// TestSimExercisesEveryRule fails when a rule is dead, or when the model lacks what would fire it.
func TestSimExercisesEveryRule(t *testing.T) {
	fired := map[ag.Rule]int{}
	add := func(m *Model) {
		for r, n := range m.fired {
			fired[r] += n
		}
	}
	for seed := uint64(0); seed < 1000 && len(fired)+len(unseen) < len(ag.Rules); seed++ {
		m := NewModel(shapeOf(seed))
		if err := m.Run(seed, nil); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		add(m)
	}
	m := NewModel(shapes[0])
	m.Explore(Bounds{Epochs: 2, Writes: 1, States: 5_000})
	add(m)
	for _, r := range ag.Rules {
		reason, excused := unseen[r]
		switch {
		case fired[r] == 0 && !excused:
			t.Errorf("rule %s never fired", r)
		case fired[r] > 0 && excused:
			t.Errorf("rule %s fired, although: %s", r, reason)
		}
	}
}

// A suspicion for nothing deposes a leader that is well, and breaks nothing: neither with other faults nor alone.
func TestFalseSuspicionIsHarmless(t *testing.T) {
	for name, only := range map[string]odds{
		"alone":      {suspicion: 300},
		"and faults": {suspicion: 300, crash: 20, cutPeer: 30, cutStore: 20, lostAnswer: 1000, planned: 20},
	} {
		t.Run(name, func(t *testing.T) {
			deposed := 0
			for seed := range uint64(60) {
				m := NewModel(shapeOf(seed))
				m.only = only
				if err := m.Run(seed, func(line string) {
					if strings.Contains(line, "voters saw") {
						deposed++
					}
				}); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			if deposed == 0 {
				t.Error("no run deposed anybody by a suspicion")
			}
		})
	}
}
