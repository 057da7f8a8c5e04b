package backup

import (
	"context"
	"time"
)

// Kind is what a backup copies.
type Kind string

// The kinds of backups: all files, those that changed since the last full one, those that changed since the last one.
const (
	Full         Kind = "full"
	Differential Kind = "diff"
	Incremental  Kind = "incr"
)

// Kinds are those that a person may ask for.
var Kinds = []Kind{Full, Differential, Incremental}

// Progress is how far a backup or a restore has come.
type Progress struct {
	Percent float64
	Phase   string // what is done beside copying; "": it copies
}

// Job is a backup to be made.
type Job struct {
	Kind Kind
	Node string // the replica on which it is made
	// Primary is how the primary's server is asked to begin and to end the backup where this node's is a secondary's.
	// nil: this node's server is the primary's.
	Primary *Standin
}

// Standin is a server that answers in the primary's name. Its data directory is this node's.
type Standin struct {
	Data      string
	Socket    string // directory of its socket
	Superuser string
	Patience  time.Duration // how long the beginning of a backup may take beside a checkpoint
}

// Recovery is a restore: which backup, and how far WAL is replayed behind it.
type Recovery struct {
	Label    string // of the backup
	Timeline uint32 // whose history is followed
	Target   Target
	Data     string // the data directory, empty or not there
	// Tablespaces is the directory in which all tablespaces are put, so that none meets that of a living server.
	Tablespaces string
}

// Tool is a program that keeps backups. Every method but Version and ArchiveCommand speaks with the repository, returns
// when the program has ended, and kills it when the context ends. Errors have the program's own words, without secrets.
type Tool interface {
	// Version returns the program's version, or an error that says how it is installed.
	Version(ctx context.Context) (string, error)
	// ArchiveCommand returns the archive_command that is the same on every replica.
	ArchiveCommand() string
	// Create makes the group's place in the repository, if it is not there. The server of this node must be the
	// primary.
	Create(ctx context.Context) error
	// Marks are those of the group's place in the repository.
	Marks
	// Upgrade has the group's place in the repository take the WAL and backups of the cluster that the group has now.
	// Those of earlier clusters stay.
	Upgrade(ctx context.Context) error
	// Check has the primary, which runs here, archive a segment and waits until the repository has it.
	Check(ctx context.Context) error
	// Run makes a backup of the server that runs here, and removes those that are kept no longer.
	Run(ctx context.Context, j Job, each func(Progress)) error
	// Backups returns the backups in the repository, without the WAL. It is quick.
	Backups(ctx context.Context) (Catalog, error)
	// Catalog returns what the repository has for the group.
	Catalog(ctx context.Context) (Catalog, error)
	// Verify reads everything in the repository and compares its checksums.
	Verify(ctx context.Context) (report string, err error)
	// Expire removes backups, and WAL, that are kept no longer.
	Expire(ctx context.Context) error
	// Restore fills a data directory, and configures the recovery that replays WAL at the first start.
	Restore(ctx context.Context, r Recovery, each func(Progress)) error
}

// Catalog is what a repository has for a group.
type Catalog struct {
	Problem   string   // why it is of no use, as "missing stanza path"; "": nothing is wrong
	Running   bool     // a backup is under way somewhere
	Backups   []Backup // the oldest first
	WAL       []string // names of segments and partial segments, without suffixes of the repository
	Histories map[uint32]string
	System    uint64 // identifier of the cluster that archives there
	Owner     string // id of the group whose mark it has; "": none, or it was not asked for
	Major     int    // of its PostgreSQL
}

// Backup is a backup in a repository.
type Backup struct {
	Label    string    `json:"label"`
	Kind     Kind      `json:"type"`
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended"`
	Size     int64     `json:"size_bytes"`   // of the database
	Stored   int64     `json:"stored_bytes"` // of what the backup added to the repository
	Begin    string    `json:"begin_lsn"`
	End      string    `json:"end_lsn"` // from here on it is consistent
	BeginWAL string    `json:"begin_wal"`
	EndWAL   string    `json:"end_wal"`
	Failed   bool      `json:"failed"` // it has pages with a wrong checksum
	Group    string    `json:"group_id,omitempty"`
	Node     string    `json:"node,omitempty"` // the replica on which it was made; "": it is not known
}
