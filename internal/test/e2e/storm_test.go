package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/faultfs"
	"github.com/coteriedb/coterie/internal/lab/linkem"
)

// stormMinutes is how long the storm of the long proof lasts.
const stormMinutes = 1

// TestEndToEndStorm lets several faults overlap, on any nodes, a majority included: kills, pauses, cuts, slow links,
// full, slow and stalled disks, wrong clocks, and operators who change the configuration, move the leadership or force
// it meanwhile. After each squall every fault is ended and the configuration is put back, and the group must become
// whole without more. The judges of the chaos test, which is proved there to see a loss, then compare the answers
// that clients got with the rows that exist.
func TestEndToEndStorm(t *testing.T) {
	long(t)
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: networks of their own need root")
	}
	if err := faultfs.Possible(); err != nil {
		t.Skip("NOT RUN:", err)
	}
	seeds := chosenSeeds(t, "COTERIE_STORM_SEED")
	var told strings.Builder
	for i, seed := range seeds {
		t.Run("seed "+strconv.FormatUint(seed, 10), func(t *testing.T) { told.WriteString(rage(t, seed)) })
		// Also if a later one fails: each is an evidence of its own.
		record(t, "make storm SEED='"+strings.Trim(fmt.Sprint(seeds[:i+1]), "[]")+"'", "COTERIE_STORM_RECORD", told.String())
	}
}

// rage plays the storm of one seed. It returns which faults were applied and what the judges found.
func rage(t *testing.T, seed uint64) string {
	s := &storm{chaos: chaos{group: newGroup(t, lab.Options{Net: lab.NetNamespaces, Disks: true, Witness: true}), rng: rand.New(rand.NewPCG(seed, 1))}, seed: seed}
	minutes := setting(t, "COTERIE_STORM_MINUTES", stormMinutes)
	s.say(t, "seed %d, %d minutes", seed, minutes)
	s.begin(t, seed)
	squalls := 0
	for ends := time.Now().Add(time.Duration(minutes) * time.Minute); time.Now().Before(ends) && !t.Failed(); {
		squalls++
		s.squall(t, squalls)
		s.intruder.verify(t, s.ReadWrite())
	}
	s.stop(t)
	s.say(t, "%s", s.paths.judge(t))
	if s.eras > 0 {
		s.say(t, "what came after the last forced failover, with the faults of all:")
	}
	s.judgeAll(t, squalls)
	s.down(t)
	return s.told.String()
}

type storm struct {
	chaos
	seed    uint64
	changed bool          // the configuration, since it was put back
	loss    *acceptedLoss // in this squall; nil: none
	eras    int           // histories that a forced failover ended
}

// squall applies some faults, each while the earlier ones are in force, ends them all, and waits until the group is
// whole and serves.
func (s *storm) squall(t *testing.T, n int) {
	t.Helper()
	was := s.whole(t)
	var names []string
	for range 2 + s.rng.IntN(4) {
		name, do := s.fault(t)
		if err := do(); err != nil {
			name += " (" + err.Error() + ")" // its target has ended, or hangs
		}
		names = append(names, name)
		time.Sleep([]time.Duration{0, 300 * time.Millisecond, time.Second, 3 * time.Second, 8 * time.Second}[s.rng.IntN(5)])
	}
	s.calm(t)
	began := time.Now()
	s.putBack(t)
	now := s.whole(t)
	s.progress(t, 20)
	s.say(t, "%3d. %s: whole after %v, epoch %d to %d", n, strings.Join(names, "; "), time.Since(began).Round(100*time.Millisecond), was.Epoch, now.Epoch)
	if s.loss != nil {
		s.judgeForced(t)
	}
}

// fault draws one. If a process has already ended, it returns that.
func (s *storm) fault(t *testing.T) (name string, do func() error) {
	node := s.any("n1", "n2", "n3")
	what := s.any(lab.WhatAgent, lab.WhatKeeper, lab.WhatPostgres)
	cut := func(to string, reject, oneWay bool) func() error {
		return func() error {
			_, err := s.Cut(t.Context(), node, to, reject, oneWay)
			return err
		}
	}
	disk := func(f faultfs.Fault) func() error {
		return func() error {
			_, err := s.Disk(t.Context(), node, f)
			return err
		}
	}
	switch s.rng.IntN(20) {
	case 0:
		return "kill " + node, func() error { return s.Kill(node, lab.WhatNode) }
	case 1:
		return "kill " + what + " of " + node, func() error { return s.Kill(node, what) }
	case 2:
		return "kill w", func() error { return s.Kill("w", lab.WhatNode) }
	case 3:
		return "pause " + node, func() error { return s.Pause(node, lab.WhatNode) }
	case 4:
		return "pause " + what + " of " + node, func() error { return s.Pause(node, what) }
	case 5:
		return "cut " + node, cut(lab.AllNodes, false, false)
	case 6:
		return "reject " + node, cut(lab.AllNodes, true, false)
	case 7:
		return "cut what " + node + " sends", cut(lab.AllNodes, false, true)
	case 8:
		return "fill " + node, disk(faultfs.Fault{Kind: faultfs.Full})
	case 9:
		return "stall " + node, disk(faultfs.Fault{Kind: faultfs.Stalled})
	case 10:
		return "slow " + node, disk(faultfs.Fault{Kind: faultfs.Slow, Delay: 50 * time.Millisecond})
	case 11:
		by := time.Duration(s.rng.IntN(7)-3) * time.Hour
		return fmt.Sprintf("clock of %s by %v", node, by), func() error {
			_, err := s.Clock(node, by)
			return err
		}
	case 12, 13, 14, 15:
		return s.change(node)
	case 16:
		return "planned failover to " + node, func() error { return s.operate("failover", "--to", node, "--node", s.node(node)) }
	case 17:
		return s.force(node)
	default:
		p := s.any("wan-bad", "satellite")
		return p + " to " + node, func() error {
			_, err := s.Link(t.Context(), node, lab.AllNodes, linkem.Profiles[p], false)
			return err
		}
	}
}

func (s *storm) any(of ...string) string { return of[s.rng.IntN(len(of))] }

// calm ends everything that a fault may have changed.
func (s *storm) calm(t *testing.T) {
	t.Helper()
	if _, err := s.Heal(t.Context(), lab.AllEnds, lab.AllEnds, false); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		if _, err := s.Disk(t.Context(), n, faultfs.Fault{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []string{"n1", "n2", "n3", "w"} {
		if err := s.Resume(n); err != nil {
			t.Logf("resume %s: %v", n, err)
		}
		if _, err := s.Clock(n, 0); err != nil {
			t.Logf("clock of %s: %v", n, err)
		}
		if err := s.Start(n); err != nil {
			t.Logf("start %s: %v", n, err)
		}
	}
}
