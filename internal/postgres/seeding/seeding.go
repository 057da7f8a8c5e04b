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
	// Dial opens a connection to the source's agent. It is called often: a seeding uses several, and replaces those that are cut.
	Dial func(context.Context) (net.Conn, error)
	// Anchor opens a connection to the primary's agent when the source is a secondary: the primary keeps the WAL that the copy
	// will need when it streams from it. Nil: the source is the primary.
	Anchor func(context.Context) (net.Conn, error)
	Member ag.ReplicaID // this node
	Epoch  ag.Epoch     // in which the source is the primary
	// Target is the data directory: missing, empty, or an older copy of the same cluster, of which what is equal stays. What of
	// that copy has to be kept (S5) must have been kept before. It may be a mount point.
	Target string
	// StateDir is a directory outside Target where the mark of a seeding under way is kept.
	StateDir string
	// TablespaceMap says where a tablespace of the source goes on this node: an absolute path outside Target.
	// Nil refuses a source that has tablespaces.
	TablespaceMap func(oid uint32, location string) (string, error)
	// NodeFiles returns files of this node, by path relative to Target, that must be in the copy from the moment it can be
	// started. They replace the source's files of the same name. Nil: none.
	NodeFiles func(ag.CopyID) map[string][]byte
	// From is a directory with another copy of the same cluster, as a restored backup or a snapshot is: what the target lacks is
	// taken from there where it equals the source's, instead of from the wire. It is only read. "": none.
	From        string
	Compression string         // SEED_COMPRESSION; "" is AUTO
	MaxRate     func() int64   // bytes of the source's files per second, asked again and again; nil or 0: unlimited
	Streams     int            // data connections; 0: by the size of the copy, at most 4
	Spread      bool           // do not ask the source for a burst of writes (an immediate checkpoint)
	Corrupt     bool           // take pages whose checksum is wrong at the source as they are
	Progress    func(Progress) // called a few times a second and at each new phase, from one goroutine at a time; nil: nobody watches
}

// The phases of a seeding, in their order, as Progress names them.
const (
	PhaseCheckpoint = "waiting for checkpoint"
	PhasePrepare    = "preparing"
	PhaseCopy       = "copying"
	PhaseFinish     = "finishing"
	PhaseSync       = "syncing"
	PhaseDone       = "done"
)

// Progress is how far a seeding has come.
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
	Waiting string        `json:"waiting,omitempty"` // for what, or why, in words

	Pace     float64       `json:"pace"`         // bytes of files per second, over the last half minute: what the ETA is made of
	DiskWait time.Duration `json:"disk_wait_ns"` // spent by all connections on the target's disks
	NetWait  time.Duration `json:"net_wait_ns"`  // and on the source's answers
}

// ETA estimates the time that is left, by bytes of files and how fast they were settled lately, whatever they became on the wire;
// 0 if it cannot be told, as while the source is gone.
func (p Progress) ETA() time.Duration {
	if p.Pace <= 0 || p.Total == 0 || p.Waiting != "" {
		return 0
	}
	return time.Duration(float64(p.Total-p.Done) / p.Pace * float64(time.Second))
}

// Ratio is how many bytes of files came for each byte on the wire, those that were there already left out; 0 while nothing came.
func (p Progress) Ratio() float64 {
	if p.Wire == 0 {
		return 0
	}
	return float64(p.Done-p.Same) / float64(p.Wire)
}

// Result describes a finished copy.
type Result struct {
	SystemID string      // the source's system identifier
	Timeline ag.Timeline // of the backup
	Start    ag.LSN      // where replay begins
	End      ag.LSN      // where the copy becomes consistent
	Copy     ag.CopyID   // made anew for this copy
	Progress Progress    // at the end
}

// Run fills o.Target and returns once the copy is complete, verified and durable. A connection that is cut is opened again, for
// as long as ctx lasts, and nothing that arrived is sent again; Run gives up when the source refuses. Whatever it returns an
// error for leaves a directory that no server can be started from (or, if nothing was touched yet, the old copy), and the next
// Run, from the same source or another, compares what is there and fetches the difference.
func Run(ctx context.Context, o Options) (Result, error) {
	r, err := run(ctx, o)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // closed connections are only how it showed
	}
	if err != nil {
		return Result{}, fmt.Errorf("seed %s: %w", o.Target, err)
	}
	return r, nil
}

// maxRounds bounds how many backup windows one Run takes because databases come and go.
const maxRounds = 5

func run(ctx context.Context, o Options) (Result, error) {
	target, err := checkPlaces(o.Target, o.StateDir)
	if err != nil {
		return Result{}, err
	}
	o.Target = target
	pace := &pacer{rate: o.MaxRate}
	choose, err := newChooser(o.Compression, pace.limit)
	if err != nil {
		return Result{}, err
	}
	if err := checkFrom(o.From, target); err != nil {
		return Result{}, err
	}
	s := &seeder{o: o, watch: newWatcher(o.Progress, choose), choose: choose, pace: pace}
	defer s.close()
	if m, err := readMark(o.StateDir); err == nil && m.Target == target {
		choose.resume(m.Codec)
	}
	stopWatch := s.watch.run()
	defer stopWatch()
	s.watch.enter(PhaseCheckpoint)
	for round := 1; ; round++ {
		end, err := s.round(ctx)
		var r *RefusedError
		switch {
		case err != nil && !(errors.As(err, &r) && r.Code == codeGone):
			return Result{}, err
		case err == nil && end.Again == "":
			return s.install(ctx, end)
		case round >= maxRounds:
			return Result{}, fmt.Errorf("%d backup windows were not enough: %s", round, whyAgain(end, err))
		}
		s.watch.again(whyAgain(end, err))
	}
}

func whyAgain(e ending, err error) string {
	if err != nil {
		return err.Error()
	}
	return e.Again
}

// install makes the copy startable.
func (s *seeder) install(ctx context.Context, end ending) (Result, error) {
	r := Result{SystemID: s.info.SystemID, Timeline: s.info.Timeline, Start: s.info.Start, End: end.End, Copy: ag.CopyID(uuid.NewString())}
	if err := checkControl(end.Control, r.SystemID); err != nil {
		return Result{}, err
	}
	var files map[string][]byte
	if s.o.NodeFiles != nil {
		files = s.o.NodeFiles(r.Copy)
	}
	if err := s.tree.writeNodeFiles(end.Label, files); err != nil {
		return Result{}, fmt.Errorf("write this node's files: %w", err)
	}
	s.watch.enter(PhaseSync)
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	if err := s.tree.install(end.Control); err != nil {
		return Result{}, fmt.Errorf("install: %w", err)
	}
	if err := removeMark(s.o.StateDir); err != nil {
		return Result{}, err
	}
	s.farewell()
	s.watch.enter(PhaseDone)
	r.Progress = s.watch.snapshot()
	return r, nil
}

// checkOldCopy refuses to replace a copy of something else.
func checkOldCopy(target, systemID string, major int) error {
	if v, err := os.ReadFile(filepath.Join(target, "PG_VERSION")); err == nil {
		if have := strings.TrimSpace(string(v)); have != strconv.Itoa(major) && have != "" {
			return fmt.Errorf("the directory %w: a cluster of PostgreSQL %s, the source runs %d; empty it yourself if it is not needed", errOther, have, major)
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
			return fmt.Errorf("the directory %w: another cluster (system identifier %s, the source has %s); empty it yourself if it is not needed", errOther, have, systemID)
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
