package backupruns

import (
	"context"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// How often the other nodes are asked, how long that may take, and for how long an answer counts.
const (
	everyOther = 10 * time.Second
	askLimit   = 5 * time.Second
	countsFor  = 35 * time.Second
)

// Watch remembers what the other replicas tell of their backups, so that this node can show it without asking them.
type Watch struct {
	// Ask asks every other replica with data at once.
	Ask func(ctx context.Context) map[ag.ReplicaID]backup.Activity

	mu   sync.Mutex
	said map[ag.ReplicaID]answer // guarded by mu
}

type answer struct {
	backup.Activity
	at time.Time
}

// Run asks until ctx is done.
func (w *Watch) Run(ctx context.Context) error {
	retry.Every(ctx, everyOther, func() {
		c, cancel := context.WithTimeout(ctx, askLimit)
		defer cancel()
		all := w.Ask(c)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.said == nil {
			w.said = map[ag.ReplicaID]answer{}
		}
		for id, a := range all {
			w.said[id] = answer{a, time.Now()}
		}
	})
	return nil
}

// Latest returns what the other replicas told lately.
func (w *Watch) Latest() map[ag.ReplicaID]backup.Activity {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[ag.ReplicaID]backup.Activity{}
	for id, a := range w.said {
		if time.Since(a.at) < countsFor {
			out[id] = a.Activity
		}
	}
	return out
}
