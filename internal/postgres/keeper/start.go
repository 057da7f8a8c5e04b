package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/rotating"
	"github.com/coteriedb/coterie/internal/postgres/keeper/datadir"
	"github.com/coteriedb/coterie/internal/postgres/keeper/proc"
)

// starting is a start whose preparation on disk is in progress.
type starting struct {
	req       StartRequest
	reply     func(pid int, err error)
	cancelled string

	log    *os.File // what preparation made: where the server's output goes, if not into memory
	before datadir.PIDFile
}

// start begins a start; launch completes it.
func (k *keeper) start(req StartRequest, reply func(int, error)) {
	if err := k.mayStart(req); err != nil {
		reply(0, err)
		return
	}
	k.generation++
	if req.Generation != 0 {
		k.generation = req.Generation
	}
	req.Generation = k.generation
	s := &starting{req: req, reply: reply}
	k.starting = s
	k.memory = remembered{PGData: req.PGData, Postgres: req.Postgres, Generation: k.generation, Epoch: k.epoch}
	memory := k.memory
	k.onDisk(func() error { return k.prepare(s, memory) }, func(err error) {
		k.starting = nil
		pid := 0
		if err == nil {
			pid, err = k.launch(s)
		}
		if s.log != nil {
			_ = s.log.Close()
		}
		if err != nil {
			k.log.Error("start refused or failed", "generation", req.Generation, "err", err)
		}
		s.reply(pid, err)
	})
}

// mayStart checks the conditions of a start that need no disk.
func (k *keeper) mayStart(req StartRequest) error {
	switch {
	case k.exiting:
		return refuse(ErrBusy, "the keeper is ending")
	case k.server.pid != 0:
		return refuse(ErrBusy, "a server runs already, process %d of generation %d", k.server.pid, k.generation)
	case k.end != nil || k.starting != nil:
		return refuse(ErrBusy, "a server is starting or ending")
	case !filepath.IsAbs(req.Postgres) || !filepath.IsAbs(req.PGData):
		return refuse(ErrRefused, "paths of the binary and the data directory must be absolute: %q, %q", req.Postgres, req.PGData)
	case len(proc.Descendants(os.Getpid())) > 0:
		return refuse(ErrBusy, "processes of the last server are still alive")
	}
	return k.mayLead(req)
}

// mayLead checks that a start as primary is covered by an armed deadline.
func (k *keeper) mayLead(req StartRequest) error {
	switch {
	case !req.Leader:
		return nil
	case !k.armed || k.fencing() || boottime.Now() >= k.limit():
		return refuse(ErrNotArmed, "start as primary in epoch %d: the keeper is not armed", req.Epoch)
	case req.Epoch != k.epoch:
		return refuse(ErrNotArmed, "start as primary in epoch %d: the keeper is armed for epoch %d", req.Epoch, k.epoch)
	}
	return nil
}

// prepare performs the part of a start that touches the disk and other processes. It runs on the disk goroutine.
func (k *keeper) prepare(s *starting, memory remembered) error {
	req := s.req
	if err := k.claim(req.PGData); err != nil {
		return err
	}
	ctx, cancel := shortly()
	defer cancel()
	if err := endLeftovers(ctx, k.log, req.PGData, req.Postgres); err != nil {
		return refuse(ErrBusy, "%v", err)
	}
	if err := dropTornLocks(k.log, req.PGData, k.runDir); err != nil {
		return err
	}
	fault.Point("keeper.emptied") // no process of an older server is left; the keeper has not noted the new one
	if err := durable.ReplaceJSON(filepath.Join(k.dir, "state"), memory); err != nil {
		return err
	}
	fault.Point("keeper.noted") // the keeper has noted the new server; standby.signal may be missing
	if !req.Leader {
		if err := datadir.PutStandbySignal(req.PGData); err != nil {
			return err
		}
	}
	fault.Point("keeper.signal") // standby.signal is there; no server runs
	if req.LogFile != "" {
		if err := k.openLog(s); err != nil {
			return fmt.Errorf("open the server's log: %w", err)
		}
	}
	s.before = datadir.ReadPIDFile(req.PGData)
	return nil
}

// openLog opens the server's log. The copy of the log in memory rotates itself; one that the server writes rotates when
// a server starts.
func (k *keeper) openLog(s *starting) error {
	if k.out != nil {
		f, err := rotating.Open(s.req.LogFile)
		if err == nil {
			k.out.CopyTo(f)
		}
		return err
	}
	rotating.ShiftLarge(s.req.LogFile)
	var err error
	s.log, err = os.OpenFile(s.req.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return err
}

// launch forks the postmaster, in the loop, where the state may have changed since the request. No process of a server
// is alive, so a moment on the disk delays no fence.
func (k *keeper) launch(s *starting) (int, error) {
	if s.cancelled != "" {
		return 0, refuse(ErrBusy, "start given up: %s", s.cancelled)
	}
	if k.end != nil {
		return 0, refuse(ErrBusy, "start given up: a fence is under way")
	}
	if err := k.mayLead(s.req); err != nil {
		return 0, err
	}
	if s.req.Leader {
		if err := datadir.DropStandbySignal(s.req.PGData); err != nil {
			return 0, err
		}
		fault.Point("keeper.unsignalled") // standby.signal is away; no server runs
	} else if !datadir.HasStandbySignal(s.req.PGData) {
		return 0, refuse(ErrRefused, "standby.signal vanished from %s while the start was prepared", s.req.PGData)
	}
	pid, err := k.exec(s)
	if err != nil {
		pgdata := s.req.PGData
		k.onDisk(func() error { return datadir.Seal(pgdata) }, func(err error) {
			if err != nil {
				k.log.Error("put standby.signal back", "err", err)
			}
		})
		return 0, err
	}
	fault.Point("keeper.forked") // the postmaster runs; neither keeper nor agent has noted it
	k.server = server{pid: pid, req: s.req, before: s.before, next: boottime.Now() + watchClosely}
	k.log.Info("postmaster started", "pid", pid, "generation", k.generation, "primary", s.req.Leader, "epoch", s.req.Epoch)
	return pid, nil
}

func (k *keeper) exec(s *starting) (int, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, fmt.Errorf("start PostgreSQL: %w", err)
	}
	defer func() { _ = null.Close() }()
	out := uintptr(unix.Stderr)
	switch {
	case s.log != nil:
		out = s.log.Fd()
	case k.out != nil && s.req.LogFile != "":
		out = k.out.Output().Fd()
	}
	env := s.req.Env
	if len(env) == 0 {
		env = os.Environ()
	}
	pid, err := k.fork.Fork(s.req.Postgres, append([]string{s.req.Postgres}, s.req.Args...), serverEnv(env), []uintptr{null.Fd(), out, out})
	if err != nil {
		return 0, err
	}
	adjustOOM(pid, -900)
	return pid, nil
}

// serverEnv removes the service manager's socket from the server's environment, and makes its backends the first to be
// killed when memory runs out: otherwise they inherit the postmaster's score.
func serverEnv(env []string) []string {
	drop := map[string]bool{
		"NOTIFY_SOCKET": true, "WATCHDOG_PID": true, "WATCHDOG_USEC": true,
		"PG_OOM_ADJUST_FILE": true, "PG_OOM_ADJUST_VALUE": true,
	}
	out := make([]string, 0, len(env)+2)
	for _, e := range slices.Backward(env) { // the last of equal names wins, as in os/exec; getenv would take the first
		if name, _, _ := strings.Cut(e, "="); !drop[name] {
			drop[name] = true
			out = append(out, e)
		}
	}
	return append(out, "PG_OOM_ADJUST_FILE=/proc/self/oom_score_adj", "PG_OOM_ADJUST_VALUE=0")
}

// adjustOOM is best effort: lowering the score needs a privilege, keeping a lowered one does not.
func adjustOOM(pid, score int) {
	_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte(strconv.Itoa(score)), 0)
}

// claim locks the data directory against keepers of other node directories, because this keeper ends every process that
// works in it.
func (k *keeper) claim(pgdata string) error {
	d, err := os.Open(pgdata)
	if err != nil {
		return fmt.Errorf("open the data directory: %w", err)
	}
	if k.claimed != nil {
		if sameFile(d, k.claimed) {
			return d.Close()
		}
		_ = k.claimed.Close() // another one, or replaced since, as by a reseeding
		k.claimed = nil
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = d.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return refuse(ErrBusy, "the data directory %s is locked by the keeper of another node directory", pgdata)
		}
		return fmt.Errorf("lock the data directory: %w", err)
	}
	k.claimed = d
	return nil
}

func sameFile(a, b *os.File) bool {
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// cleanUp ends what a killed keeper left behind. The parent-death signal is ending its server, but backends may ignore
// that for a long time. It runs before the keeper serves requests.
func (k *keeper) cleanUp() {
	var m remembered
	var f Fenced
	if found, err := readJSON(filepath.Join(k.dir, "fenced"), &f); err != nil {
		k.log.Error("read the fence record", "err", err)
	} else if found {
		k.fenced, k.epoch = &f, f.Epoch
	}
	if found, err := readJSON(filepath.Join(k.dir, "state"), &m); err != nil || !found || !filepath.IsAbs(m.PGData) {
		if err != nil {
			k.log.Error("read the state", "err", err)
		}
		return
	}
	k.memory, k.epoch, k.generation = m, max(k.epoch, m.Epoch), m.Generation
	k.server.req.PGData = m.PGData
	if err := k.claim(m.PGData); err != nil {
		k.log.Warn("the data directory of the last start is not ours", "err", err)
		k.server.req.PGData = ""
		return
	}
	ctx, cancel := shortly()
	defer cancel()
	began := time.Now()
	err := errors.Join(endLeftovers(ctx, k.log, m.PGData, m.Postgres), datadir.Seal(m.PGData))
	if err != nil {
		k.log.Error("clean up after the last keeper", "err", err)
	}
	k.log.Info("looked for what the last keeper left behind", "pgdata", m.PGData, "took", time.Since(began).Round(time.Millisecond))
}

// shortly bounds the wait for the processes of an earlier keeper.
func shortly() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 10*time.Second)
}

// remembered is the content of the keeper's state file: the server that the next keeper must clean up.
type remembered struct {
	PGData     string   `json:"pgdata"`
	Postgres   string   `json:"postgres"`
	Generation uint64   `json:"generation"`
	Epoch      ag.Epoch `json:"epoch"`
}

// readJSON reads a small file; found is false if it does not exist.
func readJSON(path string, v any) (found bool, err error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", path, err)
	}
	return true, nil
}
