package major

import (
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Return is the way back from an upgrade by blue/green that loses nothing: blue, which the group has left, follows
// green by logical replication from the moment at which the group passed. It is open until it is taken, or ends for a
// reason.
type Return struct {
	// Within is for how long it is to stay open after the group has passed; 0: there is to be none.
	Within time.Duration `json:"within_ns"`

	Open  bool      `json:"open"`
	Asked bool      `json:"asked,omitempty"` // the group is to pass back to blue
	Ended bool      `json:"ended,omitempty"` // it is to end without being taken
	Epoch ag.Epoch  `json:"epoch"`           // the leadership of green in which it goes on
	Until time.Time `json:"until"`           // by this machine's clock
	Most  int64     `json:"most_bytes"`      // of WAL that green keeps for blue
	Print string    `json:"print"`           // the fingerprint of green's definitions when blue had them
	Slots int       `json:"slots"`           // of blue on green
	Left  bool      `json:"left,omitempty"`  // it has ended, and blue's server in order
	// Progress is how far blue is, in words. Why is the reason for which it has ended, or was not taken yet.
	Progress string `json:"progress,omitempty"`
	Why      string `json:"why,omitempty"`
}

// ToLeave reports whether blue has followed, and its server is still to end in order.
func (r *Return) ToLeave() bool { return !r.Open && !r.Left && !r.Until.IsZero() }

// ReturnStep is what is to be done next about a way back.
type ReturnStep string

// The steps.
const (
	ReturnRest   ReturnStep = "rest"
	ReturnWait   ReturnStep = "wait"   // green does not lead at the moment, or nothing is to be done
	ReturnAgain  ReturnStep = "again"  // this node leads green in the next epoch, and nobody has led between the two
	ReturnFollow ReturnStep = "follow" // start blue's server, and have it follow
	ReturnSwitch ReturnStep = "switch"
	ReturnEnd    ReturnStep = "end"
)

// ReturnFacts are what is known while blue follows green.
type ReturnFacts struct {
	Record  ag.Record
	Serves  bool // this node's server takes writes, as far as is known
	Now     time.Time
	Runs    bool   // blue's server runs, and follows
	Starts  int    // how often it was started in a row
	Changed string // what differs from the definitions that blue has; "": nothing
	Failed  string // why the replication cannot go on; "": it can
	Lag     int64  // bytes of WAL that blue has not confirmed
	Kept    int64  // bytes of WAL that green keeps for blue
	Free    int64  // bytes free where either cluster is, the less of the two; negative: not known
}

// The bounds of a way back: how often blue's server is started in a row, and the least room on disk with which it goes
// on.
const (
	maxStarts  = 5
	ReturnRoom = 1 << 30
)

// NextReturn returns the next step of the way back from an upgrade that is done, and why where it is to end.
func (u Upgrade) NextReturn(f ReturnFacts) (ReturnStep, string) {
	r := u.Return
	if u.Phase != Done || r == nil || !r.Open {
		return ReturnRest, ""
	}
	if at, why := u.leadsOn(f.Record); at == ReturnEnd || at == ReturnAgain {
		return at, why
	} else if at == ReturnWait || !f.Serves {
		return ReturnWait, ""
	}
	switch {
	case r.Ended:
		return ReturnEnd, "an administrator has ended it"
	case !r.Until.After(f.Now) && !r.Asked:
		return ReturnEnd, "its time is over"
	case f.Failed != "":
		return ReturnEnd, f.Failed
	case f.Changed != "":
		return ReturnEnd, f.Changed + ", which the old cluster does not get"
	case f.Kept > r.Most:
		return ReturnEnd, fmt.Sprintf("the old cluster is too far behind: the new one keeps %d MB of WAL for it, and %d MB are the limit", f.Kept>>20, r.Most>>20)
	case f.Free >= 0 && f.Free < ReturnRoom:
		return ReturnEnd, fmt.Sprintf("%d MB are free on the disk, and %d MB are the least with which the old cluster is kept up", f.Free>>20, ReturnRoom>>20)
	case !f.Runs && f.Starts >= maxStarts:
		return ReturnEnd, fmt.Sprintf("the server of the old cluster has ended %d times; see log/%s", f.Starts, BlueLog)
	case !f.Runs:
		return ReturnFollow, ""
	case r.Asked && f.Lag <= maxLag:
		return ReturnSwitch, ""
	}
	return ReturnWait, ""
}

// leadsOn judges the leadership. Blue's slots are on this node's server alone, and hold what it has written. The writes
// of another primary are not in them. "" means that green leads here, in the epoch of the way back.
func (u Upgrade) leadsOn(r ag.Record) (ReturnStep, string) {
	e, st := r.Epoch, r.State
	here := e.Leader == u.Self
	switch {
	case e.Epoch < u.Return.Epoch: // the record is not read yet
		return ReturnWait, ""
	case e.Epoch > u.Return.Epoch+1 || !here:
		return ReturnEnd, fmt.Sprintf("another leadership has begun (%s, epoch %d), of whose writes the old cluster gets nothing", e.Leader, e.Epoch)
	case e.Phase != ag.PhaseLead:
		return ReturnWait, ""
	case st.Copy != u.To.Copy:
		return ReturnEnd, "the copy of the new cluster on this node was made anew"
	case e.Epoch > u.Return.Epoch:
		return ReturnAgain, ""
	}
	return "", ""
}

// BlueLog is the name of the log of blue's server while it follows green.
const BlueLog = "postgres-blue.log"

// ReturnWhole returns the way back of an upgrade whose blue has everything of green. It is Made when the ends of both
// clusters are known.
func (u Upgrade) ReturnWhole(now time.Time) (Upgrade, error) {
	w, err := u.Reverse(u.Return.Epoch, now, now)
	w.Whole = true
	return w, err
}
