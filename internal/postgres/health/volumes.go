package health

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/lib/storage"
)

// How often the storage below the directories is looked at, and how long a look may take. Files of the kernel answer at
// once; a tool is asked at most once a minute, and never by a goroutine that others wait for.
const (
	volumesEvery = 5 * time.Second
	volumesLimit = 6 * time.Second
)

// lookAtVolumes looks at the volumes below the directories. Findings do not make a node ill: while one side of a mirror
// serves, there is no reason for a failover.
func (m *Monitor) lookAtVolumes(ctx context.Context, dirs []string) error {
	distinct := storage.Distinct(m.look(ctx, dirs...))
	if ctx.Err() != nil { // the answers of a look that was ended are not facts
		return ctx.Err()
	}
	before := map[string]storage.State{}
	if old := m.volumes.Swap(&distinct); old != nil {
		for _, v := range *old {
			before[v.Title()] = v.State
		}
	}
	changed := false
	for _, v := range distinct {
		was, known := before[v.Title()]
		if was == v.State {
			continue
		}
		changed = true
		found := v.Findings()
		switch {
		case len(found) > 0:
			m.cfg.Logger.Warn("storage", "state", v.State, "finding", found[0].What, "run", found[0].Run)
		case known:
			m.cfg.Logger.Info("storage", "state", v.State, "was", was, "volume", v.Title())
		}
	}
	if changed {
		m.cfg.Found()
	}
	return nil
}

// volumesStale is after what time without an answer the last one is not shown any more: a call that the kernel holds
// ends by no limit.
const volumesStale = 3 * volumesEvery

// stood returns what the directories stand on when that was looked at last. While looks do not end, it says since when
// nothing is known.
func (m *Monitor) stood(now time.Duration) []storage.Volume {
	var known []storage.Volume
	if v := m.volumes.Load(); v != nil {
		known = *v
	}
	lasts, _, _ := m.under.trouble(now)
	if lasts < volumesStale {
		m.unseen = ""
		return known
	}
	if m.unseen == "" {
		m.unseen = time.Now().Add(-lasts).UTC().Format(time.RFC3339)
		m.cfg.Logger.Warn("storage is not known: a look at it does not end", "since", m.unseen)
	}
	if known == nil {
		for _, dir := range slices.Sorted(maps.Keys(m.places)) {
			known = append(known, storage.Volume{Dir: dir, Kind: storage.Other})
		}
	}
	out := slices.Clone(known)
	for i := range out {
		v := &out[i]
		v.Why = "no look at it has ended since " + m.unseen + "; a tool hangs in the kernel, or the device does"
		if v.State != "" && v.State != storage.Unknown {
			v.Why += "; it was " + string(v.State) + " before"
		}
		v.State, v.Filling = storage.Unknown, nil
	}
	return out
}
