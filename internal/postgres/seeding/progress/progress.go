package progress

import "time"

// The phases of a seeding, in their order, as Progress names them.
const (
	PhaseCheckpoint = "waiting for checkpoint"
	PhasePrepare    = "preparing"
	PhaseCopy       = "copying"
	PhaseFinish     = "finishing"
	PhaseSync       = "syncing"
	PhaseDone       = "done"
)

// Progress is the progress of a seeding.
type Progress struct {
	Phase   string        `json:"phase"`
	Done    int64         `json:"done_bytes"`        // bytes of files settled: received, or found equal
	Same    int64         `json:"same_bytes"`        // of these, found equal: chunks, and pages of chunks that were mended
	Total   int64         `json:"total_bytes"`       // of all files, by the source's list; 0 while it is not known
	Wire    int64         `json:"wire_bytes"`        // read from connections
	Files   int           `json:"files"`             // in the list
	Windows int           `json:"windows"`           // backup windows begun
	Cuts    int           `json:"cuts"`              // connections lost and opened again
	Took    time.Duration `json:"took_ns"`           // since Run was called
	Rate    float64       `json:"rate"`              // bytes of files per second, lately
	Codec   string        `json:"codec"`             // in use, and why
	Packed  bool          `json:"packed,omitempty"`  // that codec compresses
	Waiting string        `json:"waiting,omitempty"` // the thing waited for or the reason, in words

	Pace     float64       `json:"pace"`         // bytes of files per second, over the last half minute: the basis of the ETA
	DiskWait time.Duration `json:"disk_wait_ns"` // spent by all connections on the target's disks
	NetWait  time.Duration `json:"net_wait_ns"`  // and on the source's answers
}

// ETA estimates the remaining time from the bytes of files and their recent rate, independent of their size on the
// network. It returns 0 without an estimate, as while the source is lost.
func (p Progress) ETA() time.Duration {
	if p.Pace <= 0 || p.Total == 0 || p.Waiting != "" {
		return 0
	}
	return time.Duration(float64(p.Total-p.Done) / p.Pace * float64(time.Second))
}

// Ratio returns the bytes of files received for each byte on the network, without those that existed before. It returns
// 0 until something is received.
func (p Progress) Ratio() float64 {
	if p.Wire == 0 {
		return 0
	}
	return float64(p.Done-p.Same) / float64(p.Wire)
}
