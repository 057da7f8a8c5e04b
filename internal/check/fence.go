package check

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/node/fencetime"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

// ProfileOf returns the lease profile of the group as the node in dir knows it. Where there is no node it is "",
// without an error.
func ProfileOf(dir string) (string, error) {
	l, err := config.NewLayout(dir)
	if err != nil {
		return "", err
	}
	if found, err := absent(l); found != nil || err != nil {
		return "", err
	}
	var g ag.Group
	b, err := os.ReadFile(l.GroupFile())
	if err == nil {
		err = json.Unmarshal(b, &g)
	}
	if err != nil {
		return "", fmt.Errorf("which lease profile the group has is not known, since %s cannot be read: %w", l.GroupFile(), err)
	}
	return cmp.Or(g.Profile, defaultProfile), nil
}

// defaultProfile is the lease profile of a new group.
const defaultProfile = "default"

// fenceRounds is the number of measurements of the time to fence, of which the worst is used.
const fenceRounds = 3

// FindFence measures the time to fence and compares every lease profile with it (docs/internals/safety.md, "Keeper").
// Where there is no node in dir, the profile of a new group counts as in use.
func FindFence(ctx context.Context, dir string) ([]Finding, error) {
	if l, err := config.NewLayout(dir); err == nil && isWitness(l) {
		return []Finding{{Level: OK, What: "a witness has no server that would be fenced"}}, nil
	}
	profile, unknown := ProfileOf(dir)
	whose := "; it is the group's"
	if profile == "" && unknown == nil {
		profile, whose = defaultProfile, "; a new group has it"
	}
	var all []time.Duration
	for range fenceRounds {
		d, err := keeper.MeasureFence(ctx, fencetime.Processes)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	slices.Sort(all)
	worst := all[len(all)-1]
	out := []Finding{{
		Level: OK,
		What:  fmt.Sprintf("fencing %d processes took %v, at worst %v of %d", fencetime.Processes, round(all[len(all)/2]), round(worst), fenceRounds),
	}}
	names := make([]string, 0, len(ag.Profiles))
	for name := range ag.Profiles {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		out = append(out, judgeProfile(ag.Profiles[name], worst, name == profile, whose))
	}
	return out, unknown
}

// judgeProfile compares a profile with the worst measured time to fence. The finding shows the calculation. Only the
// group's own profile can be a reason to act.
func judgeProfile(p ag.Profile, worst time.Duration, inUse bool, whose string) Finding {
	f := Finding{Level: OK, What: fmt.Sprintf("profile %s allows %v for it", p.Name, p.Fence)}
	if inUse {
		f.What += whose
	}
	if worst <= p.Fence {
		return f
	}
	p.Fence = worst
	err := p.Validate()
	f.Level, f.Why = Warning, "it holds all the same: a slower fence uses up the reserve between the lease and the takeover"
	switch {
	case err != nil && inUse:
		f.Level, f.Why = Problem, err.Error()
		f.Run = "use a longer profile, or find what makes the host slow: a primary here may still act when another one takes over"
	case err != nil:
		f.Level, f.Why = OK, "not to be used on this host: "+err.Error()
	case !inUse:
		f.Level = OK
	}
	return f
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
