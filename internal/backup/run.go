package backup

import (
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Run is a backup that a replica makes, or the last one that it made or tried to make.
type Run struct {
	ID      string    `json:"id"`
	Kind    Kind      `json:"type"`
	Started time.Time `json:"started"`
	Percent float64   `json:"percent"`         // of the files
	Phase   string    `json:"phase,omitempty"` // what is done beside copying; "": it copies
	Ended   time.Time `json:"ended,omitzero"`  // zero: it is under way
	Made    Backup    `json:"made,omitzero"`   // if it has succeeded
	// Failure is why it failed, of the kind Failed; "": it has not.
	Failure string    `json:"failure,omitempty"`
	Failed  fail.Kind `json:"failed,omitempty"`
}

// UnderWay reports whether the backup is being made.
func (r Run) UnderWay() bool { return r.ID != "" && r.Ended.IsZero() }

// Err returns the error with which the run failed; nil if it succeeded or is under way.
func (r Run) Err() error {
	if r.Failure == "" {
		return nil
	}
	return fail.Error{Kind: r.Failed, Err: fmt.Errorf("%s", r.Failure)}
}

// End notes that the run has ended at that time, with a backup or with an error.
func (r *Run) End(at time.Time, made Backup, err error) {
	r.Ended = at
	if err != nil {
		r.Failure, r.Failed = err.Error(), fail.KindOf(err)
		return
	}
	r.Made, r.Percent, r.Phase = made, 100, ""
}

// String returns what is made, since when and how far it has come.
func (r Run) String() string {
	at := r.Phase
	if at == "" {
		at = fmt.Sprintf("%.0f %%", r.Percent)
	}
	return fmt.Sprintf("%s, since %s, %s", r.Kind, r.Started.Local().Format(time.DateTime), at)
}

// RunRequest asks a replica for a backup.
type RunRequest struct {
	Kind        Kind          `json:"type"`
	ReplayLimit time.Duration `json:"replay_limit_ns"` // how long a secondary may take to replay to where it begins
}

// Check returns an error unless the request is one that can be carried out.
func (r RunRequest) Check() error {
	switch {
	case !slices.Contains(Kinds, r.Kind):
		return fail.Usagef("%.20q is no type of a backup: full, diff or incr", r.Kind)
	case r.ReplayLimit < time.Second || r.ReplayLimit > 24*time.Hour:
		return fail.Usagef("a secondary cannot be given %v to replay to where the backup begins: from 1s to 24h", r.ReplayLimit)
	}
	return nil
}

// Restore is a restore, or a drill, that was begun on a node and is not over.
type Restore struct {
	ID      string    `json:"id"`
	Dir     string    `json:"dir"`   // into which it restores
	Drill   bool      `json:"drill"` // the directory is removed when it is over
	Started time.Time `json:"started"`
	// Interrupted means that its process is gone: what it has restored so far lies in Dir.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Activity is what a replica tells of its work on backups.
type Activity struct {
	Run      Run       `json:"run,omitzero"` // under way, or the last one
	Restores []Restore `json:"restores,omitempty"`
	// Last is when the newest backup in the repository ended, by the node's last look at it; zero: none is known.
	Last      time.Time `json:"last,omitzero"`
	LastLabel string    `json:"last_label,omitempty"`
	LastNode  string    `json:"last_node,omitempty"` // on which it was made
}
