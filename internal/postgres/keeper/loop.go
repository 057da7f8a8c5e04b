package keeper

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/postgres/keeper/datadir"
	"github.com/coteriedb/coterie/internal/postgres/keeper/memlog"
	"github.com/coteriedb/coterie/internal/postgres/keeper/proc"
)

// How often the loop looks for changes that are not announced.
const (
	killEvery    = 5 * time.Millisecond   // while killing: new orphans keep arriving,
	killSeldom   = time.Second            // less and less often where one is held by the kernel and cannot die
	watchClosely = 100 * time.Millisecond // at postmaster.pid, while a server is becoming primary
	watchIdly    = time.Second            // at postmaster.pid, otherwise
	leftTime     = 300 * time.Millisecond // for the log collector to write the last output of a clean postmaster
	idleExit     = time.Minute            // without server and agent; the next agent starts a new keeper
	never        = time.Duration(1<<63 - 1)
)

// keeper is the whole state. Only the goroutine of run touches it, and run never blocks. The disk goroutine handles
// files, so that a failing disk cannot delay a fence.
type keeper struct {
	log    *slog.Logger
	dir    string // NODE/keeper
	runDir string // of the node
	fork   proc.Forker
	alarm  *alarm
	out    *memlog.Log // what servers say; nil: it goes to the disk at once
	disk   chan diskJob
	inbox  chan func()   // functions of other goroutines, to be run in the loop
	gone   chan struct{} // closed when the loop has ended

	counted   int           // processes below this one, as last counted
	countedAt time.Duration // boottime of that

	attached *conn // the agent; nil: none
	lonely   time.Duration
	fenced   *Fenced

	armed    bool
	epoch    ag.Epoch      // the highest one armed or fenced
	deadline time.Duration // BOOTTIME
	until    time.Duration // after DETACH: an earlier deadline; 0: none
	orders   uint64        // ARM and EXTEND that were accepted

	server     server
	memory     remembered // the content of the state file, now or soon
	generation uint64
	starting   *starting
	end        *ending

	claimed *os.File // the locked data directory; the disk goroutine's

	lastExit  string
	lastClean bool
	exitCount uint64
	exiting   bool // end the keeper as soon as nothing runs
	stopped   bool
}

// server is the running postmaster, or the last one.
type server struct {
	pid      int // 0: none
	req      StartRequest
	before   datadir.PIDFile // postmaster.pid before it started
	ready    bool            // accepts writes
	covered  bool            // and standby.signal is back in place
	watching bool            // a look at postmaster.pid is under way
	next     time.Duration
}

// ending is a stop, a fence or a crash that is not complete until no process is alive.
type ending struct {
	fence  bool
	reason string
	quitAt time.Duration // when to send SIGQUIT to a postmaster that was stopped in smart or fast mode
	killAt time.Duration // when to begin killing every process
	// killsFrom is when that began; 0: not yet.
	killsFrom time.Duration
	forced    bool // by SIGQUIT or worse
	warnAt    time.Duration
	settling  bool // all processes are dead, and that is being written to disk
	exit      *Exit
	waiters   []func(clean bool)
}

type diskJob struct {
	do   func() error
	then func(error) // in the loop
}

// run is the loop. It returns when the keeper is to end; no server runs then.
func (k *keeper) run(sigchld, term <-chan os.Signal) {
	defer close(k.gone)
	k.lonely = boottime.Now()
	for {
		k.alarm.set(k.step())
		if k.stopped {
			return
		}
		select {
		case f := <-k.inbox:
			// The deadline first: after a pause of this process it takes precedence over requests made meanwhile.
			k.checkDeadline()
			f()
		case <-sigchld:
		case <-k.alarm.rings:
		case s := <-term:
			k.terminate(s.String())
		}
	}
}

// step performs what is due and returns the time of its next call.
func (k *keeper) step() time.Duration {
	none := proc.Reap(k.died)
	k.checkDeadline()
	next := min(k.watch(), k.advance(none), k.idle())
	if k.armed && !k.fencing() {
		next = min(next, k.limit())
	}
	return next
}

// limit is the deadline in force.
func (k *keeper) limit() time.Duration {
	if k.until != 0 {
		return min(k.until, k.deadline)
	}
	return k.deadline
}

func (k *keeper) fencing() bool { return k.end != nil && k.end.fence }

func (k *keeper) checkDeadline() {
	if k.armed && !k.fencing() && boottime.Now() >= k.limit() {
		reason := "the lease deadline passed"
		if k.until != 0 {
			reason = "the agent detached and did not come back in time"
		}
		k.beginFence(reason)
	}
}

// died records a dead child.
func (k *keeper) died(pid int, ws syscall.WaitStatus) {
	if pid != k.server.pid || pid == 0 {
		return // an orphan
	}
	k.lastExit, k.exitCount = proc.Describe(ws), k.exitCount+1
	now := boottime.Now()
	if k.end == nil {
		k.end = &ending{quitAt: never, killAt: never, warnAt: never}
	}
	e := k.end
	e.exit = &Exit{PID: pid, Generation: k.generation, Status: k.lastExit}
	e.exit.Clean = ws.Exited() && ws.ExitStatus() == 0 && !e.forced
	e.warnAt = min(e.warnAt, now+2*time.Second)
	if e.exit.Clean {
		e.killAt = min(e.killAt, now+leftTime)
	} else {
		// Backends of a killed postmaster continue committing: kill them first, then log.
		e.killAt = now
		proc.KillDescendants()
	}
	k.server.pid, k.server.ready = 0, false
	k.log.Info("postmaster ended", "pid", pid, "generation", k.generation, "status", k.lastExit)
}

// beginFence starts to end everything at once. Without a server it still writes the record.
func (k *keeper) beginFence(reason string) {
	if k.fencing() {
		return
	}
	now := boottime.Now()
	if k.end == nil {
		k.end = &ending{killAt: never}
	}
	e := k.end
	e.fence, e.reason, e.forced, e.quitAt = true, reason, true, never
	e.killAt = min(e.killAt, now+KillAfter)
	e.warnAt = now + 2*time.Second
	if k.server.pid != 0 {
		_ = syscall.Kill(k.server.pid, syscall.SIGQUIT)
	}
	if k.starting != nil {
		k.starting.cancelled = "fenced: " + reason
	}
	k.log.Warn("fencing", "reason", reason, "epoch", k.epoch, "armed", k.armed, "postmaster", k.server.pid)
}

// beginStop starts to end the server with that signal. See ending for what follows if it does not stop within budget.
func (k *keeper) beginStop(sig syscall.Signal, budget time.Duration) {
	now := boottime.Now()
	budget = min(max(budget, 0), 24*time.Hour)
	if k.end == nil {
		k.end = &ending{quitAt: never, killAt: never, warnAt: never}
	}
	e := k.end
	if k.server.pid == 0 || e.fence {
		return
	}
	if sig == syscall.SIGQUIT {
		e.forced, e.quitAt = true, never
		e.killAt = min(e.killAt, now+max(budget, KillAfter))
		e.warnAt = e.killAt + 2*time.Second
	} else if !e.forced {
		e.quitAt = min(e.quitAt, now+budget)
	}
	_ = syscall.Kill(k.server.pid, sig)
	k.log.Info("stopping", "signal", sig.String(), "budget", budget, "postmaster", k.server.pid)
}

// advance performs the next step of the ending.
func (k *keeper) advance(none bool) (next time.Duration) {
	e := k.end
	if e == nil || e.settling {
		return never
	}
	if none && k.server.pid == 0 {
		k.settle()
		return never
	}
	now := boottime.Now()
	if now >= e.quitAt && k.server.pid != 0 {
		k.log.Warn("the server did not stop in time; SIGQUIT", "postmaster", k.server.pid)
		_ = syscall.Kill(k.server.pid, syscall.SIGQUIT)
		e.forced, e.quitAt, e.killAt, e.warnAt = true, never, now+KillAfter, now+2*time.Second
	}
	if now < e.killAt {
		return min(e.killAt, e.quitAt)
	}
	if e.killsFrom == 0 {
		e.killsFrom = now
	}
	proc.KillDescendants()
	if now >= e.warnAt {
		left := proc.Descendants(os.Getpid())
		k.log.Error("processes survive SIGKILL; no server will be started until they are gone", "pids", left)
		e.warnAt = now + 10*time.Second
	}
	return boottime.Now() + killAgain(now-e.killsFrom)
}

// killAgain returns the pause between two rounds of kills after kills have lasted that long. A death is noticed without
// them.
func killAgain(lasted time.Duration) time.Duration {
	return min(max(lasted/10, killEvery), killSeldom)
}

// settle writes to disk that everything is dead, then answers the waiting requests.
func (k *keeper) settle() {
	e, pgdata, file := k.end, k.server.req.PGData, filepath.Join(k.dir, "fenced")
	e.settling = true
	fence := e.fence
	record := Fenced{Epoch: k.epoch, Reason: e.reason, At: time.Now().UTC()}
	do := func() error {
		var unwritten error // a disk without room for the record MUST NOT keep standby.signal away
		if fence {
			unwritten = durable.ReplaceJSON(file, record)
		}
		fault.Point("keeper.recorded") // the end of the server is on disk; standby.signal may be missing
		if e.exit != nil && e.exit.Clean {
			e.exit.Clean = datadir.ShutDown(pgdata)
		}
		if k.out != nil {
			defer k.out.Flush() // the agent looks there why the server ended
		}
		return errors.Join(unwritten, datadir.Seal(pgdata))
	}
	k.onDisk(do, func(err error) {
		if err != nil {
			k.log.Error("write down the end of the server", "err", err)
		}
		if fence {
			k.fenced = &record
		}
		if e.fence && !fence { // the fence came during this write
			k.settle()
			return
		}
		k.settled()
	})
}

func (k *keeper) settled() {
	fault.Point("keeper.settled") // standby.signal is there; nobody was answered
	e := k.end
	k.end = nil
	if e.fence {
		k.armed, k.deadline, k.until = false, 0, 0
		k.log.Warn("fenced", "epoch", k.epoch, "reason", e.reason)
	}
	if e.exit != nil {
		e.exit.Fenced = e.fence
		k.lastClean = e.exit.Clean
		if k.attached != nil {
			k.attached.send(message{Exit: e.exit})
		}
	}
	for _, w := range e.waiters {
		w(k.lastClean)
	}
	k.lonely = boottime.Now()
}

// watch checks at intervals whether the server has become primary. PostgreSQL removes standby.signal when it is
// promoted, and the keeper removes it before it starts a primary. Once the server accepts writes the file can be
// restored.
func (k *keeper) watch() (next time.Duration) {
	s := &k.server
	if s.pid == 0 || s.watching || k.end != nil {
		return never
	}
	now := boottime.Now()
	if now < s.next {
		return s.next
	}
	s.watching = true
	s.next = now + watchIdly
	if (k.armed || s.req.Leader) && !s.covered {
		s.next = now + watchClosely
	}
	pid, pgdata, before := s.pid, s.req.PGData, s.before
	var ready bool
	k.onDisk(func() error {
		ready = datadir.AcceptsWrites(pgdata, pid, before)
		if ready && !datadir.HasStandbySignal(pgdata) {
			return datadir.PutStandbySignal(pgdata)
		}
		return nil
	}, func(err error) {
		s.watching = false
		if err != nil {
			k.log.Error("protect the primary's data directory against unplanned starts", "err", err)
		}
		if s.pid != pid {
			return
		}
		s.ready, s.covered = ready, ready && err == nil
		if ready && !k.armed && k.end == nil {
			k.beginFence("the server was promoted while the keeper was not armed")
		}
	})
	return s.next
}

// idle ends a keeper that is not needed any more, or that was asked to end.
func (k *keeper) idle() (next time.Duration) {
	if k.server.pid != 0 || k.starting != nil || k.end != nil {
		return never
	}
	k.stopped = k.stopped || k.exiting
	if k.attached != nil {
		return never
	}
	if boottime.Now() >= k.lonely+idleExit {
		k.log.Info("no server and no agent; ending")
		k.stopped = true
	}
	return k.lonely + idleExit
}

// terminate is an orderly end on SIGTERM or SIGINT, as when the machine shuts down.
func (k *keeper) terminate(why string) {
	k.log.Info("ending on request", "signal", why)
	k.exiting = true
	switch {
	case k.starting != nil:
		k.starting.cancelled = "the keeper is ending"
	case k.server.pid != 0:
		k.beginStop(syscall.SIGINT, 5*time.Second)
	}
}

// onDisk runs do on the disk goroutine and then runs then in the loop. Jobs run one after another, in order.
func (k *keeper) onDisk(do func() error, then func(error)) {
	select {
	case k.disk <- diskJob{do, then}:
	default:
		then(fmt.Errorf("%w: the disk does not keep up", ErrBusy))
	}
}

// serveDisk is the disk goroutine.
func (k *keeper) serveDisk() {
	for j := range k.disk {
		err := j.do()
		k.post(func() { j.then(err) })
	}
}

// post runs f in the loop. It returns false if the loop has ended.
func (k *keeper) post(f func()) bool {
	select {
	case k.inbox <- f:
		return true
	case <-k.gone:
		return false
	}
}

// population counts the processes below the keeper. Beside a running server it counts at most every two seconds: an
// agent requests the state several times a second, and walking /proc is most of the cost of an answer.
func (k *keeper) population() int {
	if now := boottime.Now(); k.server.pid == 0 || now-k.countedAt > 2*time.Second {
		k.counted, k.countedAt = len(proc.Descendants(os.Getpid())), now
	}
	return k.counted
}

// state is the answer to STATUS.
func (k *keeper) state() *State {
	return &State{
		Version: Version, KeeperPID: os.Getpid(), Postmaster: k.server.pid, Generation: k.generation,
		Armed: k.armed, Epoch: k.epoch, Deadline: k.stateDeadline(), Leader: k.leading(), Fenced: k.fenced,
		LastExit: k.lastExit, ExitCount: k.exitCount, Descendants: k.population(),
		Ending: k.end != nil, PGData: k.server.req.PGData,
	}
}

func (k *keeper) stateDeadline() time.Duration {
	if !k.armed {
		return 0
	}
	return k.limit()
}

func (k *keeper) leading() bool {
	return k.server.pid != 0 && (k.server.req.Leader || k.server.ready)
}
