package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

// FencedProcesses is of how many processes the server is that is fenced to learn how long this host takes.
const FencedProcesses = 200

// measuredFence is how long this host takes to fence a server, as measured when the node was made.
type measuredFence struct {
	Took      time.Duration `json:"took"`
	Processes int           `json:"processes"`
	At        time.Time     `json:"at"`
}

func fenceFile(l config.Layout) string { return filepath.Join(l.State(), "fence.json") }

// measureFence measures it: once, or the middle of three where the first is too long for the profile, so that one bad moment of a busy
// host decides nothing.
func measureFence(ctx context.Context, fits func(time.Duration) error) (time.Duration, error) {
	var all []time.Duration
	for range 3 {
		d, err := keeper.MeasureFence(ctx, FencedProcesses)
		if err != nil {
			return 0, err
		}
		if all = append(all, d); fits(d) == nil && len(all) == 1 {
			return d, nil
		}
	}
	slices.Sort(all)
	return all[1], nil
}

// holdsProfile refuses a lease profile that a host which takes so long to fence cannot hold, and shows why.
func holdsProfile(profile string, fence time.Duration) error {
	p, ok := ag.Profiles[profile]
	if !ok {
		return fmt.Errorf("lease profile %q: default, fast or wan", profile)
	}
	if err := p.WithFence(fence).Validate(); err != nil {
		return fail.Refusedf("this host takes %v to fence a server of %d processes, which is too long: %w; found the group with --profile wan, or use a host that is not as busy",
			fence.Round(time.Millisecond), FencedProcesses, err)
	}
	return nil
}

// SaveFence measures this host for a profile, refuses what it cannot hold, and keeps the measurement.
func SaveFence(ctx context.Context, l config.Layout, profile string) (time.Duration, error) {
	d, err := measureFence(ctx, func(d time.Duration) error { return holdsProfile(profile, d) })
	if err != nil {
		return 0, err
	}
	if err := holdsProfile(profile, d); err != nil {
		return d, err
	}
	return d, durable.ReplaceJSON(fenceFile(l), measuredFence{d, FencedProcesses, time.Now()})
}

// checkFence is made when an agent starts: by the measurement of when the node was made, or a new one where there is none.
func checkFence(ctx context.Context, l config.Layout, profile string) (time.Duration, error) {
	b, err := os.ReadFile(fenceFile(l))
	if errors.Is(err, fs.ErrNotExist) {
		return SaveFence(ctx, l, profile)
	}
	var m measuredFence
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w; remove it, and it is measured again", fenceFile(l), err)
	}
	if err := holdsProfile(profile, m.Took); err != nil {
		return m.Took, fmt.Errorf("%w; measured at %s, remove %s to have it measured again", err, m.At.Format(time.DateTime), fenceFile(l))
	}
	return m.Took, nil
}

// holdsEverywhere refuses a change of the group's lease profile that the host of a replica cannot hold, and shows why. A replica that has not
// said how long its host takes is not asked here: its agent refuses to start where it is too long.
func (n *node) holdsEverywhere(now, next string) error {
	p, ok := ag.Profiles[next]
	snap := n.agent.Snapshot()
	if next == now || !ok || snap == nil {
		return nil
	}
	return everyHostHolds(p, snap)
}

func everyHostHolds(p ag.Profile, snap *agent.Snapshot) error {
	for _, r := range snap.Group.Replicas {
		took := snap.Statuses[r.ID].Fence
		if took == 0 {
			continue
		}
		if err := p.WithFence(took).Validate(); err != nil {
			e := console.Errorf("55000", "the host of %s takes %v to fence a server of %d processes, which is too long: %v", r.ID,
				took.Round(time.Millisecond), FencedProcesses, err)
			e.Hint = "coterie check --only fence measures it again; remove fence.json in the node's state directory and restart its agent to have it counted"
			return e
		}
	}
	return nil
}
