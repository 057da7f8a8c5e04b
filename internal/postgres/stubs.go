package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

var errTODO = errors.New("not written yet")

type session struct{}
type replSession struct{}

func newSession(*Instance) *session         { return &session{} }
func newReplSession(*Instance) *replSession { return &replSession{} }
func (*session) close() error               { return nil }
func (*replSession) close() error           { return nil }

// Init creates the cluster in PGData.
func (i *Instance) Init(ctx context.Context) error { return errTODO }

// Args returns the arguments with which the server must be started.
func (i *Instance) Args() []string { return nil }

// WriteHBA writes the private pg_hba.conf and pg_ident.conf.
func (i *Instance) WriteHBA() error { return errTODO }

// PrepareStart makes the stopped server's files ready for a start.
func (i *Instance) PrepareStart(ctx context.Context) error { return errTODO }

// EndOfWAL returns the position behind the last WAL this instance has.
func (i *Instance) EndOfWAL(ctx context.Context) (ag.Position, error) { return ag.Position{}, errTODO }

// History returns the ancestors of a timeline.
func (i *Instance) History(ctx context.Context, tli ag.Timeline) ([]ag.TimelineEntry, error) {
	return nil, errTODO
}

// WALChecksum returns the CRC-32C of the n bytes of WAL before pos.
func (i *Instance) WALChecksum(ctx context.Context, pos ag.Position, n int) (crc uint32, ok bool, err error) {
	return 0, false, errTODO
}

// ErrTimeline says that a promotion did not, or could not, take the timeline id that was asked for.
var ErrTimeline = errors.New("timeline id not available")

// Promote ends recovery on exactly the timeline tli.
func (i *Instance) Promote(ctx context.Context, tli ag.Timeline, budget time.Duration) (endOfRecovery ag.LSN, err error) {
	return 0, errTODO
}

// Sync is a value of synchronous_standby_names.
type Sync struct {
	Names []string
	Num   int
	First bool
}

// ParseSync reads PostgreSQL's grammar of synchronous_standby_names.
func ParseSync(s string) (Sync, error) { return Sync{}, errTODO }

// String prints the setting as PostgreSQL reads it.
func (s Sync) String() string { return "" }

// SetSync sets synchronous_standby_names.
func (i *Instance) SetSync(ctx context.Context, s Sync) error { return errTODO }

// SyncInForce returns the synchronous_standby_names a fresh session sees, and the file it comes from.
func (i *Instance) SyncInForce(ctx context.Context) (s Sync, sourcefile string, err error) {
	return Sync{}, "", errTODO
}

// Application is the application_name of a member's walsender in an epoch.
func Application(member ag.ReplicaID, epoch ag.Epoch) string { return "" }

// ParseApplication is the inverse of Application.
func ParseApplication(name string) (member ag.ReplicaID, epoch ag.Epoch, ok bool) {
	return "", 0, false
}

// WriteAutoConf edits postgresql.auto.conf of a stopped server.
func (i *Instance) WriteAutoConf(set map[string]*string) error { return errTODO }

// ProbeCommit starts a tiny synchronous commit on a side session.
func (i *Instance) ProbeCommit(ctx context.Context) (done <-chan error, pid int, err error) {
	return nil, 0, errTODO
}

// WaitingInSyncRep reports whether the backend waits for synchronous replication.
func (i *Instance) WaitingInSyncRep(ctx context.Context, pid int) bool { return false }

// FlushLSN returns how far WAL is durable here.
func (i *Instance) FlushLSN(ctx context.Context) (ag.LSN, error) { return 0, errTODO }

// Checkpoint performs a checkpoint (a restartpoint in recovery).
func (i *Instance) Checkpoint(ctx context.Context) error { return errTODO }

// PauseConflicts lets replay win over local sessions.
func (i *Instance) PauseConflicts(ctx context.Context) error { return errTODO }

// RestoreConflicts undoes PauseConflicts.
func (i *Instance) RestoreConflicts(ctx context.Context) error { return errTODO }

// EnsureSlots makes the physical slots of the members be as wanted.
func (i *Instance) EnsureSlots(ctx context.Context, want []string, min map[string]ag.LSN) error {
	return errTODO
}

// TerminateWalsender ends every walsender of that application_name.
func (i *Instance) TerminateWalsender(ctx context.Context, appName string) error { return errTODO }

// WalsenderRows counts the walsenders of a member, of any epoch.
func (i *Instance) WalsenderRows(ctx context.Context, member string) (int, error) { return 0, errTODO }

// Role is what authentication needs to know of a role.
type Role struct {
	Name        string
	Password    string // the verifier, never the password itself
	CanLogin    bool
	ValidUntil  *time.Time // nil for no limit
	Super       bool
	Replication bool
	ConnLimit   int
	MemberOf    []string // direct and indirect memberships, itself not included
}

// ErrNoRole says that there is no such role.
var ErrNoRole = errors.New("no such role")

// Verifier returns the role of that name.
func (i *Instance) Verifier(ctx context.Context, user string) (Role, error) { return Role{}, errTODO }

// RewindOptions says from where to rewind.
type RewindOptions struct {
	SourceConninfo string
	ForkDir        string
	Progress       func(string)
}

// ErrRewind says that a rewind is not possible.
var ErrRewind = errors.New("rewind not possible")

// Rewind brings a stopped, diverged copy back to the history of the source.
func (i *Instance) Rewind(ctx context.Context, o RewindOptions) error { return errTODO }

// Interrupted reports whether a rewind was begun and not finished.
func (i *Instance) Interrupted() bool { return false }

// KeepFork copies the diverged tail of a stopped copy into dir.
func (i *Instance) KeepFork(ctx context.Context, from ag.Position, dir string) error { return errTODO }

// QuoteConninfo quotes a value for a libpq connection string.
func QuoteConninfo(s string) string { return "" }
