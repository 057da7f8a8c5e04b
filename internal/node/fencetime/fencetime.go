package fencetime

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

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

// Processes is of how many processes the server is that is fenced to learn how long this host takes.
const Processes = 200

// measurement is how long this host takes to fence a server, as measured when the node was made.
type measurement struct {
	Took      time.Duration `json:"took"`
	Processes int           `json:"processes"`
	At        time.Time     `json:"at"`
}

func file(l config.Layout) string { return filepath.Join(l.State(), "fence.json") }

// measure measures it: once, or the middle of three where the first is too long for the profile, so that one bad moment
// of a busy host decides nothing.
func measure(ctx context.Context, fits func(time.Duration) error) (time.Duration, error) {
	var all []time.Duration
	for range 3 {
		d, err := keeper.MeasureFence(ctx, Processes)
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

// Holds refuses a lease profile that a host which takes so long to fence cannot hold, and shows why.
func Holds(profile string, fence time.Duration) error {
	p, ok := ag.Profiles[profile]
	if !ok {
		return fmt.Errorf("lease profile %q: default, fast or wan", profile)
	}
	if err := p.WithFence(fence).Validate(); err != nil {
		return fail.Refusedf("this host takes %v to fence a server of %d processes, which is too long: %w; found the group with --profile wan, or use a host that is not as busy",
			fence.Round(time.Millisecond), Processes, err)
	}
	return nil
}

// Save measures this host for a profile, refuses what it cannot hold, and keeps the measurement.
func Save(ctx context.Context, l config.Layout, profile string) (time.Duration, error) {
	d, err := measure(ctx, func(d time.Duration) error { return Holds(profile, d) })
	if err != nil {
		return 0, err
	}
	if err := Holds(profile, d); err != nil {
		return d, err
	}
	return d, durable.ReplaceJSON(file(l), measurement{d, Processes, time.Now()})
}

// Check is made when an agent starts: by the measurement of when the node was made, or a new one where there is none.
func Check(ctx context.Context, l config.Layout, profile string) (time.Duration, error) {
	b, err := os.ReadFile(file(l))
	if errors.Is(err, fs.ErrNotExist) {
		return Save(ctx, l, profile)
	}
	var m measurement
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w; remove it, and it is measured again", file(l), err)
	}
	if err := Holds(profile, m.Took); err != nil {
		return m.Took, fmt.Errorf("%w; measured at %s, remove %s to have it measured again", err, m.At.Format(time.DateTime), file(l))
	}
	return m.Took, nil
}
