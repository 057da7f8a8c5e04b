package health

import (
	"context"
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

// stood returns what the directories stood on when that was looked at last.
func (m *Monitor) stood() []storage.Volume {
	if v := m.volumes.Load(); v != nil {
		return *v
	}
	return nil
}
