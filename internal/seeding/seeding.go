package seeding

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/coteriedb/coterie/internal/ag"
)

// Options says from where, into what and how fast a copy is made.
type Options struct {
	// Conn is a raw byte stream that behaves like a fresh connection to the source's private PostgreSQL socket. Run sends the
	// startup packet itself and closes the connection before it returns.
	Conn net.Conn
	// Joined says that the source's side has sent the startup packet already: the first bytes on Conn are the server's answer.
	Joined bool
	User   string // a role that may replicate; the server must not ask it for a password on this connection
	// Slot is the physical replication slot that keeps the source's WAL from the backup's redo position on. It is created if
	// it is missing, before the backup begins, and is the caller's to drop. Streaming fetches the WAL itself.
	Slot string
	// Target is the data directory: missing, empty, or an older copy of the same cluster, which is replaced. What of that copy
	// has to be kept (S5) must have been kept before. It may be a mount point.
	Target string
	// StateDir is a directory outside Target where the mark of a seeding under way is kept.
	StateDir string
	// TablespaceMap says where a tablespace of the source goes on this node: an absolute path outside Target.
	// Nil refuses a source that has tablespaces.
	TablespaceMap func(oid uint32, location string) (string, error)
	// NodeFiles returns files of this node, by path relative to Target, that must be in the copy from the moment it can be
	// started, such as the mark that holds its copy id. They replace the source's files of the same name. Nil: none.
	NodeFiles func(ag.CopyID) map[string][]byte
	MaxRate   int64          // bytes per second read from Conn; 0: unlimited
	Progress  func(Progress) // called by Run itself, a few times a second; nil: nobody watches
	Fast      bool           // ask for an immediate checkpoint, which is a burst of writes, instead of a spread one
}

// The phases of a seeding, in their order, as Progress names them.
const (
	PhaseCheckpoint = "waiting for checkpoint"
	PhasePrepare    = "preparing"
	PhaseCopy       = "copying"
	PhaseVerify     = "verifying"
	PhaseSync       = "syncing"
	PhaseDone       = "done"
)

// Progress is how far a seeding has come.
type Progress struct {
	Phase string
	Done  int64 // bytes of files received
	Total int64 // the source's estimate of Done at the end; 0 while it is not known
	Wire  int64 // bytes read from the connection
	Files int   // files received
}

// Result describes a finished copy.
type Result struct {
	SystemID string      // the source's system identifier
	Timeline ag.Timeline // of the backup
	Start    ag.LSN      // where replay begins
	End      ag.LSN      // where the copy becomes consistent
	Bytes    int64       // of all files received
	Files    int
	Copy     ag.CopyID // made anew for this copy
}

// Run fills o.Target and returns once the copy is complete, verified and durable. Whatever it returns an error for leaves a
// directory that no server can be started from (or, if nothing was touched yet, the old copy), and a later Run starts clean.
func Run(ctx context.Context, o Options) (Result, error) {
	stop := context.AfterFunc(ctx, func() { _ = o.Conn.Close() }) // ends whatever read or write is under way
	defer stop()
	defer func() { _ = o.Conn.Close() }()
	r, err := run(ctx, o)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // the closed connection is only how it showed
	}
	if err != nil {
		return Result{}, fmt.Errorf("seed %s: %w", o.Target, err)
	}
	return r, nil
}

func run(ctx context.Context, o Options) (Result, error) {
	target, err := checkPlaces(o.Target, o.StateDir)
	if err != nil {
		return Result{}, err
	}
	o.Target = target
	s, err := connect(ctx, o)
	if err != nil {
		return Result{}, fmt.Errorf("connect: %w", err)
	}
	src, err := s.identify()
	if err != nil {
		return Result{}, err
	}
	if err := checkOldCopy(o.Target, src.systemID, s.major); err != nil {
		return Result{}, err
	}
	if err := s.reserve(o.Slot); err != nil {
		return Result{}, fmt.Errorf("reserve WAL: %w", err)
	}
	watch := &watcher{show: o.Progress, wire: s.wire}
	watch.enter(PhaseCheckpoint)
	b, err := s.begin(o.Fast)
	if err != nil {
		return Result{}, fmt.Errorf("begin backup: %w", err)
	}
	spaces, err := mapTablespaces(o, b.spaces)
	if err != nil {
		return Result{}, err
	}
	watch.enter(PhasePrepare)
	if err := prepare(o.Target, o.StateDir, spaces, s.major); err != nil {
		return Result{}, err
	}
	t, err := openTree(o.Target, spaces, b.spaces, s.major)
	if err != nil {
		return Result{}, err
	}
	defer t.close()
	return fill(ctx, o, src, b, t, watch)
}

// fill receives the backup into the prepared tree and installs it.
func fill(ctx context.Context, o Options, src source, b *backup, t *tree, watch *watcher) (Result, error) {
	watch.start(b.spaces)
	in := &receiver{tree: t, discard: discards(src.logDir), watch: watch, got: map[string]fileSum{}}
	m, err := in.receive(b.parts())
	if err != nil {
		return Result{}, err
	}
	end, err := b.end()
	if err != nil {
		return Result{}, fmt.Errorf("end backup: %w", err)
	}
	b.s.goodbye()
	watch.enter(PhaseVerify)
	if err := in.check(m, src, end); err != nil {
		return Result{}, err
	}
	r := Result{
		SystemID: src.systemID, Timeline: b.timeline, Start: b.start, End: end,
		Bytes: watch.now.Done, Files: watch.now.Files, Copy: ag.CopyID(uuid.NewString()),
	}
	var files map[string][]byte
	if o.NodeFiles != nil {
		files = o.NodeFiles(r.Copy)
	}
	if err := t.writeNodeFiles(in.autoConf, files); err != nil {
		return Result{}, fmt.Errorf("write this node's files: %w", err)
	}
	watch.enter(PhaseSync)
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	if err := t.install(); err != nil {
		return Result{}, fmt.Errorf("install: %w", err)
	}
	if err := removeMark(o.StateDir); err != nil {
		return Result{}, err
	}
	watch.enter(PhaseDone)
	return r, nil
}

// checkOldCopy refuses to replace a copy of something else.
func checkOldCopy(target, systemID string, major int) error {
	if v, err := os.ReadFile(filepath.Join(target, "PG_VERSION")); err == nil {
		if have := strings.TrimSpace(string(v)); have != strconv.Itoa(major) {
			return fmt.Errorf("the directory holds a cluster of PostgreSQL %s, the source runs %d; empty it yourself if it is not needed", have, major)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, name := range []string{controlName, controlOld} {
		have, err := readSystemID(filepath.Join(target, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if have != systemID {
			return fmt.Errorf("the directory holds another cluster (system identifier %s, the source has %s); empty it yourself if it is not needed", have, systemID)
		}
	}
	return nil
}

// readSystemID reads the system identifier, which every version keeps in the first eight bytes of pg_control.
func readSystemID(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b [8]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		return "", fmt.Errorf("read the system identifier in %s: %w", path, err)
	}
	return strconv.FormatUint(binary.NativeEndian.Uint64(b[:]), 10), nil
}

// watcher shows progress, at most every showEvery except at a change of phase.
type watcher struct {
	show func(Progress)
	wire *wire
	now  Progress
	last time.Time
}

const showEvery = 250 * time.Millisecond

func (w *watcher) enter(phase string) {
	w.now.Phase = phase
	w.report(true)
}

func (w *watcher) start(spaces []tablespace) {
	for _, t := range spaces {
		w.now.Total += t.size
	}
	w.enter(PhaseCopy)
}

func (w *watcher) received(n int) {
	w.now.Done += int64(n)
	w.report(false)
}

func (w *watcher) report(always bool) {
	now := time.Now()
	if w.show == nil || (!always && now.Sub(w.last) < showEvery) {
		return
	}
	w.last, w.now.Wire = now, w.wire.read
	w.show(w.now)
}
