package seeding

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
)

// State is the state of an operation.
type State string

// The states. A failed attempt that is going to be repeated leaves its operation in RETRYING; a cancelled one waits for
// an operator.
const (
	Pending   State = "PENDING" // requested: the copy has not been released yet
	Seeding   State = "SEEDING" // an attempt is under way
	Verifying State = "VERIFYING"
	Retrying  State = "RETRYING"
	Completed State = "COMPLETED"
	Failed    State = "FAILED"
	Cancelled State = "CANCELLED"
)

// Ended reports whether the state is final.
func (s State) Ended() bool { return s == Completed || s == Failed || s == Cancelled }

// Operation is one copy over all its attempts, from the request to its end; or one verification of a copy.
type Operation struct {
	ID       string            `json:"id"` // a UUID
	Target   ag.ReplicaID      `json:"target"`
	Source   ag.ReplicaID      `json:"source,omitempty"` // of the last attempt
	Because  string            `json:"because,omitempty"`
	Chosen   string            `json:"source_because,omitempty"` // why that source
	State    State             `json:"state"`
	Started  time.Time         `json:"started"`
	Ended    time.Time         `json:"ended,omitzero"`
	Attempts int               `json:"attempts"`
	Next     time.Time         `json:"next,omitzero"` // of the next attempt, while RETRYING
	Failure  *Failure          `json:"failure,omitempty"`
	FailedAt time.Time         `json:"failed_at,omitzero"`
	Progress progress.Progress `json:"progress"`
	ETA      float64           `json:"eta_seconds,omitempty"` // of the attempt under way; 0: unknown
	Report   *pagesum.Report   `json:"report,omitempty"`      // of a verification
	Absent   string            `json:"absent,omitempty"`      // why this is only the last known state, in words; never set for the node's own operations
}

// operationsKept bounds the number of operations in a journal.
const operationsKept = 32

// Journal remembers the operations of one target across restarts of its agent. Its methods may be called from any
// goroutine.
type Journal struct {
	path string

	mu  sync.Mutex
	ops []Operation // oldest first
}

// OpenJournal reads the journal at path, which need not exist yet. An operation that was under way when the agent ended
// is marked so.
func OpenJournal(path string) (*Journal, error) {
	j := &Journal{path: path}
	b, err := os.ReadFile(path)
	if err != nil {
		return j, fileio.IgnoreMissing(err)
	}
	if err := json.Unmarshal(b, &j.ops); err != nil {
		return j, fmt.Errorf("read %s: %w; it is history only, remove it", path, err)
	}
	for i := range j.ops {
		if op := &j.ops[i]; op.State == Seeding || op.State == Verifying {
			op.State, op.FailedAt = Retrying, time.Now()
			op.Failure = &Failure{Code: 207, State: "INTERRUPTED", Text: "the agent ended meanwhile"}
			if op.Report != nil {
				op.State, op.Ended = Failed, time.Now()
			}
		}
	}
	return j, nil
}

// List returns the operations, oldest first.
func (j *Journal) List() []Operation {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.ops)
}

// Last returns the newest operation; ok is false if there was none.
func (j *Journal) Last() (Operation, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.ops) == 0 {
		return Operation{}, false
	}
	return j.ops[len(j.ops)-1], true
}

// Begin adds an operation and returns its id. An operation that is still open is cancelled.
func (j *Journal) Begin(op Operation) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	for i := range j.ops {
		if !j.ops[i].State.Ended() {
			j.ops[i].State, j.ops[i].Ended = Cancelled, now
		}
	}
	op.ID, op.Started = uuid.NewString(), now
	if len(j.ops) >= operationsKept {
		j.ops = slices.Delete(j.ops, 0, len(j.ops)-operationsKept+1)
	}
	j.ops = append(j.ops, op)
	j.save()
	return op.ID
}

// Change applies f to an operation. A change of its state is recorded on disk; progress alone is not.
func (j *Journal) Change(id string, f func(*Operation)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	i := slices.IndexFunc(j.ops, func(o Operation) bool { return o.ID == id })
	if i < 0 {
		return
	}
	was := j.ops[i].State
	f(&j.ops[i])
	if j.ops[i].State != was {
		j.save()
	}
}

// save replaces the journal on disk, so that a power loss leaves the old or the new one, and never an empty file. An
// error is ignored: the journal is history, and losing its newest entry on a full disk does no harm.
func (j *Journal) save() {
	b, err := json.Marshal(j.ops)
	if err == nil && os.MkdirAll(filepath.Dir(j.path), 0o700) == nil {
		_ = durable.Replace(j.path, b, 0o600)
	}
}
