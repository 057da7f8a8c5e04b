package seeding

import (
	"context"
	"errors"
	"net"

	"github.com/coteriedb/coterie/internal/ag"
)

// Options says from where, into what and how fast a copy is made.
type Options struct {
	// Conn is a raw byte stream that behaves like a fresh connection to the source's private PostgreSQL socket. Run sends the
	// startup packet itself and closes the connection before it returns.
	Conn net.Conn
	User string // a role that may replicate; the server must not ask it for a password on this connection
	// Slot is the physical replication slot that keeps the source's WAL from the backup's redo position on. It is created if
	// it is missing, before the backup begins, and is the caller's to drop. Streaming fetches the WAL itself.
	Slot string
	// Target is the data directory: missing, empty, or prepared by Prepare (Run calls it again). It may be a mount point.
	Target string
	// StateDir is a directory outside Target where the mark of a seeding under way is kept.
	StateDir string
	// TablespaceMap says where a tablespace of the source goes on this node; the directory must be missing or empty.
	// Nil refuses a source that has tablespaces.
	TablespaceMap func(oid uint32, location string) (string, error)
	MaxRate       int64          // bytes per second; 0: unlimited
	Progress      func(Progress) // called from Run's goroutine, at most a few times a second; nil: nobody watches
	Fast          bool           // ask for an immediate checkpoint instead of a spread one
}

// The phases of a seeding, as Progress names them.
const (
	PhasePrepare    = "preparing"
	PhaseCheckpoint = "waiting for checkpoint"
	PhaseCopy       = "copying"
	PhaseVerify     = "verifying"
	PhaseSync       = "syncing"
	PhaseDone       = "done"
)

// Progress is how far a seeding has come.
type Progress struct {
	Phase string
	Done  int64 // bytes of files received
	Total int64 // the source's estimate; 0 while it is not known
	Wire  int64 // bytes read from the connection
	Files int   // files received
}

// Result describes a finished copy.
type Result struct {
	SystemID string      // the source's system identifier
	Timeline ag.Timeline // of the backup
	Start    ag.LSN      // where replay begins
	End      ag.LSN      // where the copy is consistent
	Bytes    int64
	Files    int
	Copy     ag.CopyID // made anew for this copy
}

// Run fills o.Target and returns once it is complete, verified and durable. Whatever it returns an error for leaves a
// directory that no server can be started from, and that a later Run starts from clean.
func Run(ctx context.Context, o Options) (Result, error) {
	return Result{}, errors.New("seed: not written yet")
}

// Prepare makes target ready to be filled: a copy that is there can no longer be started from the first step on, and is
// removed; the directory itself stays. A missing or empty directory is fine.
func Prepare(target, stateDir string) error {
	return errors.New("seed: not written yet")
}

// HalfSeeded reports whether target was being filled and never completed: it must be seeded again, never started.
func HalfSeeded(target, stateDir string) bool {
	return true
}
