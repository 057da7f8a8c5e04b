package coverage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/regular"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/listener/continuity"
)

const (
	pause   = time.Minute // between two looks
	looks   = 15          // after so many the file is written
	maxFile = 16 << 20    // bytes of the file that are read
	version = 1           // of the file
)

// Recorder keeps the history of one node's listener. Make it with New.
type Recorder struct {
	path string
	look func() []continuity.Group
	now  func() time.Time
	log  *slog.Logger

	mu      sync.Mutex // guards what follows
	history History
	failed  string // why the file could not be written; "": it was
}

// file is the history as it is on disk.
type file struct {
	Version int `json:"version"`
	History
}

// New returns a recorder of what look returns, which answers from memory. It goes on with the history in the file at
// path, if there is one.
func New(path string, look func() []continuity.Group, log *slog.Logger) *Recorder {
	r := &Recorder{path: path, look: look, now: time.Now, log: log}
	history, err := read(path)
	if err != nil {
		log.Warn("the history of what a failover would keep begins anew", "reason", err)
	}
	r.history = history
	return r
}

// read returns the history of a file; an empty one if there is no file.
func read(path string) (History, error) {
	f, err := regular.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return History{}, nil
	}
	if err != nil {
		return History{}, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err = errors.Join(err, f.Close()); err != nil {
		return History{}, err
	}
	var known file
	if err := json.Unmarshal(text, &known); err != nil {
		return History{}, fmt.Errorf("%s: %w", path, err)
	}
	if known.Version != version || len(known.Hours) > maxHours || len(known.Owners) > maxDays*(maxOwners+1) {
		return History{}, fmt.Errorf("%s is of another version of Coterie", path)
	}
	return known.History, nil
}

// Run looks at the sessions once a minute until ctx is done. It writes the file now and then, and at the end.
func (r *Recorder) Run(ctx context.Context) error {
	for n := 1; retry.Sleep(ctx, pause) == nil; n++ {
		r.take()
		if n%looks == 0 {
			r.write()
		}
	}
	r.write()
	return nil
}

// take adds a look. A panic ends only that: the agent is in this process.
func (r *Recorder) take() {
	defer func() {
		if x := recover(); x != nil {
			r.log.Error("background work panicked", "in", "recording what a failover would keep", "panic", x, "stack", string(debug.Stack()))
		}
	}()
	groups := r.look()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.take(r.now(), groups)
}

// write replaces the file. A failure is logged once, until it succeeds again.
func (r *Recorder) write() {
	text, err := json.Marshal(file{version, r.Read()})
	if err == nil {
		err = durable.Replace(r.path, text, 0o600)
	}
	failed := ""
	if err != nil {
		failed = err.Error()
	}
	r.mu.Lock()
	before := r.failed
	r.failed = failed
	r.mu.Unlock()
	switch {
	case err != nil && before == "":
		r.log.Warn("the history of what a failover would keep is in memory only; what it has since is lost when the agent ends", "error", err)
	case err == nil && before != "":
		r.log.Info("the history of what a failover would keep is on disk again")
	}
}

// Read returns a copy of the history.
func (r *Recorder) Read() History {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.history.copied()
}
