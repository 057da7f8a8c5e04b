package backup

import "time"

// Step is one of the things that a secondary asks of the primary for its backup.
type Step string

// The steps, about in their order. Each but Look and Open names the window that Open has returned.
const (
	Look   Step = "look"   // which timeline is written; pg_control tells it as well from then on
	Open   Step = "open"   // open a window; an earlier one of the same member ends
	Lock   Step = "lock"   // take the lock of which a cluster has one, wherever its backup is made
	Insert Step = "insert" // which segment of WAL is written
	Start  Step = "start"  // begin the backup, with a checkpoint
	Mark   Step = "mark"   // write something to WAL, so that the segment is archived
	Switch Step = "switch" // begin the next segment of WAL
	Stop   Step = "stop"   // end the backup
	Keep   Step = "keep"   // nothing: the member is there
	Close  Step = "close"  // the member needs the window no more
)

// StepRequest is a step that a secondary asks for.
type StepRequest struct {
	Step   Step   `json:"step"`
	Window string `json:"window,omitempty"`
}

// StepAnswer is what the primary says to a step.
type StepAnswer struct {
	Window   string `json:"window,omitempty"`   // of Open
	Gone     bool   `json:"gone,omitempty"`     // of Keep: there is no such window any more
	Timeline uint32 `json:"timeline,omitempty"` // of Look and Open
	Locked   bool   `json:"locked,omitempty"`   // of Lock
	LSN      string `json:"lsn,omitempty"`      // of Start and Stop
	Segment  string `json:"segment,omitempty"`  // of Insert, Start, Switch and Stop: a segment of WAL
	Label    string `json:"label,omitempty"`    // of Stop: the file backup_label
	Spaces   string `json:"spaces,omitempty"`   // of Stop: the file tablespace_map
}

// Silence is for how long the primary waits for a word of the replica that makes a backup. Then it gives the backup up.
const Silence = 30 * time.Second
