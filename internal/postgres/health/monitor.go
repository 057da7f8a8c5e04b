package health

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/lib/storage"
)

// Server asks the node's PostgreSQL. Every method returns when its context ends, or soon after.
type Server interface {
	// Answer opens a new connection, for which the postmaster must fork, and runs a SELECT.
	Answer(ctx context.Context) error
	// Commit commits a tiny write without waiting for any secondary. It returns ErrBlocked if it could and no other
	// session can.
	Commit(ctx context.Context) error
	// Databases checks the named databases, or all if there are no names. An error is a failure that does not belong to
	// one database.
	Databases(ctx context.Context, names []string) ([]DatabaseFault, error)
	// Places lists the directories that contain data.
	Places(ctx context.Context) ([]Place, error)
}

// ErrExhausted is returned by Answer if the server is up and has no connection, process or memory left, not even for
// its superuser.
var ErrExhausted = errors.New("no connection left")

// ErrBlocked is returned by Commit if no connection is left and every session waits for a lock.
var ErrBlocked = errors.New("every session is blocked")

// DatabaseFault is a database that is not online.
type DatabaseFault struct {
	Name string
	Err  string
}

// Place is a directory that contains data.
type Place struct {
	Name  string // as in "the WAL directory"
	Dir   string
	Has   string // a pattern that an entry of it must match; "": anything
	Floor int64  // bytes that must stay free
	WAL   bool
}

// Target is what the Monitor watches at this moment.
type Target struct {
	Data     bool // the data directory contains a copy, and nothing is rewriting it
	Running  bool // the server runs and has answered since its start, so that silence is a finding
	PID      int  // of its postmaster
	Writable bool
	Wait     time.Duration // HEALTH_CHECK_TIMEOUT
	Level    int           // FAILURE_CONDITION_LEVEL: the costlier probes run only where they count
	// Unusual is how long a hang of a primary lasts at least until it counts before Wait, as unusual here. It is at
	// least UnusualFloor; 0: only Wait counts.
	Unusual   time.Duration
	Databases []string
	DBOff     bool // DB_FAILOVER = OFF
}

// Report is the last result of a Monitor. The zero value is a healthy node.
type Report struct {
	ag.Health
	Lost   string  // the storage lost a write: the copy cannot be trusted
	NoRoom string  // the room is too small for the next WAL file
	Space  []Space // of each place, as last seen
	// Storage is what the places stand on, each volume once.
	Storage []storage.Volume
	Offline []string // the databases that are not online

	forgot uint64 // calls of Forget that it includes
}

// Space is the room in a directory.
type Space struct {
	Place string `json:"place"`
	Dir   string `json:"dir"`
	Free  int64  `json:"free_bytes"` // for PostgreSQL
	Total int64  `json:"total_bytes"`
}

// Config is what a Monitor needs. All fields are required.
type Config struct {
	Server Server
	Target func() Target
	Logger *slog.Logger
	Found  func() // called after the report has changed; it must not block
}

// Monitor runs the probes. Create it with New and run it with Run; Report may be called from any goroutine.
type Monitor struct {
	cfg     Config
	report  atomic.Pointer[Report]
	listed  atomic.Pointer[[]Place] // by the last attempt, until Run takes it
	volumes atomic.Pointer[[]storage.Volume]

	forgets atomic.Uint64 // calls of Forget

	busy    func() bool    // the machine has no processor to spare
	stopped func(int) bool // the process is stopped
	look    func(ctx context.Context, dirs ...string) []storage.Volume

	// Owned by Run.
	answer, commit, bases, list, under *probe
	places                             map[string]*place
	left                               map[string]*place // places of before, whose last attempt is under way
	running                            bool
	lost                               string
	unseen                             string         // since when looks at the volumes do not end; "": they do
	forgot                             uint64         // calls of Forget that were heeded
	waiting                            sync.WaitGroup // for attempts; one on a dead disk never ends
}

// New returns a Monitor that knows nothing yet.
func New(c Config) *Monitor {
	m := &Monitor{cfg: c, places: map[string]*place{}, left: map[string]*place{}, busy: busyProcessors, stopped: processStopped, look: (&storage.Reader{}).Look}
	m.answer, m.commit, m.bases, m.list, m.under = &probe{}, &probe{}, &probe{}, &probe{}, &probe{}
	m.report.Store(&Report{})
	return m
}

// Report returns the last result, without a lost write that was forgotten since.
func (m *Monitor) Report() Report {
	r := *m.report.Load()
	if r.forgot != m.forgets.Load() {
		r.Lost = ""
	}
	return r
}

// Forget drops the finding of a lost write, because the copy was replaced or an administrator trusts it. It takes
// effect before it returns: the agent looks again before the next probe does, and would otherwise discard the new copy
// for a fault of the old one.
func (m *Monitor) Forget() { m.forgets.Add(1) }

// How often probes are made, by HEALTH_CHECK_TIMEOUT, and how often the results are looked at.
const (
	probesPerWait = 3
	fastest       = 500 * time.Millisecond
	slowest       = 5 * time.Second
	keen          = 1500 * time.Millisecond // of a primary whose unusual hangs count
	basesEvery    = 10 * time.Second
	glance        = 250 * time.Millisecond
	leaveAfter    = time.Second // an attempt that does not return does not keep the agent from ending
)

// Run probes until ctx is done.
func (m *Monitor) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer m.leave()
	defer cancel()
	last := boottime.Now()
	for retry.Sleep(ctx, boottime.UntilNext(glance)) == nil {
		now := boottime.Now()
		if late := now - last - glance; late > glance { // this process stood still, not the server
			m.forgive(late)
		}
		last = now
		t := m.cfg.Target()
		m.attempt(ctx, t, now)
		m.publish(m.judge(t, now))
	}
	return nil
}

// leave waits for the attempts, except one that a disk holds.
func (m *Monitor) leave() {
	done := make(chan struct{})
	go func() { // ends with the last attempt
		m.waiting.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(leaveAfter):
		m.cfg.Logger.Warn("a probe hangs in the kernel and is left behind")
	}
}

func (m *Monitor) forgive(late time.Duration) {
	for _, p := range m.all() {
		p.forgive(late)
	}
}

func (m *Monitor) all() []*probe {
	ps := []*probe{m.answer, m.commit, m.bases, m.list, m.under}
	for _, p := range m.places {
		ps = append(ps, &p.probe)
	}
	return ps
}

// attempt begins the probes that are due.
func (m *Monitor) attempt(ctx context.Context, t Target, now time.Duration) {
	every := min(max(t.Wait/probesPerWait, fastest), slowest)
	if t.Writable && t.Unusual > 0 {
		every = min(every, keen)
	}
	begin := func(p *probe, s schedule, try func(context.Context) error) {
		if p.due(now, s.every) {
			m.begin(ctx, p, s.limit, try)
		}
	}
	if m.running != t.Running { // another server, or none: earlier results do not apply
		m.running = t.Running
		m.answer, m.commit = &probe{}, &probe{}
		if t.Running && t.Writable { // a secondary's databases are those of before, until a look says otherwise
			m.bases = &probe{}
		}
	}
	if t.Running {
		begin(m.answer, schedule{every, t.Wait}, m.cfg.Server.Answer)
		if t.Writable && t.Level >= levelAny {
			begin(m.commit, schedule{every, t.Wait}, m.cfg.Server.Commit)
		}
		if !t.DBOff { // a secondary's, too: it must not come to lead without them
			look := func(ctx context.Context) error { return m.lookIntoBases(ctx, t.Databases) }
			begin(m.bases, schedule{max(every, basesEvery), 2 * basesEvery}, look)
		}
	}
	if next := m.listed.Swap(nil); next != nil && t.Data {
		m.replace(*next)
	}
	if !t.Data {
		if len(m.places) > 0 { // the copy is being replaced, and its databases with it
			m.bases = &probe{}
		}
		m.replace(nil)
		return
	}
	begin(m.list, schedule{max(every, basesEvery), t.Wait}, m.listPlaces)
	for _, p := range m.places {
		begin(&p.probe, schedule{every, t.Wait}, p.try)
	}
	if len(m.places) > 0 {
		dirs := slices.Sorted(maps.Keys(m.places))
		begin(m.under, schedule{volumesEvery, volumesLimit}, func(ctx context.Context) error { return m.lookAtVolumes(ctx, dirs) })
	}
}

// schedule is how often a probe is made, and how long an attempt may take.
type schedule struct {
	every, limit time.Duration
}

// begin makes an attempt at a probe that is due.
func (m *Monitor) begin(ctx context.Context, p *probe, limit time.Duration, try func(context.Context) error) {
	m.waiting.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		p.ended(try(ctx))
	})
}

// basesError is the error of a check of the databases that found faults.
type basesError []DatabaseFault

func (b basesError) Error() string { return b[0].Name + ": " + b[0].Err }

func (m *Monitor) lookIntoBases(ctx context.Context, names []string) error {
	found, err := m.cfg.Server.Databases(ctx, names)
	if len(found) > 0 {
		return basesError(found)
	}
	return err
}

func (m *Monitor) listPlaces(ctx context.Context) error {
	places, err := m.cfg.Server.Places(ctx)
	if err == nil {
		m.listed.Store(&places)
	}
	return err
}

// replace adopts the present list of directories. Results for those that remain are kept. So are those of a directory
// that comes back while an attempt of before is under way in it: two attempts at one file would each read what the
// other wrote, and find that the storage loses writes.
func (m *Monitor) replace(list []Place) {
	old := m.places
	m.places = map[string]*place{}
	for _, l := range list[:min(len(list), maxPlaces)] {
		p := old[l.Dir]
		if p == nil && m.left[l.Dir] != nil && m.left[l.Dir].underWay() {
			p = m.left[l.Dir]
		}
		if p == nil {
			p = &place{}
		}
		p.set(l)
		m.places[l.Dir] = p
	}
	maps.Copy(m.left, old)
	maps.DeleteFunc(m.left, func(dir string, p *place) bool { return m.places[dir] != nil || !p.underWay() })
}

func (m *Monitor) publish(r Report) {
	old := m.report.Swap(&r)
	if old.Health == r.Health && slices.Equal(old.Offline, r.Offline) && old.Lost == r.Lost && (old.NoRoom == "") == (r.NoRoom == "") {
		return
	}
	switch {
	case r.Level != 0 && (old.Level != r.Level):
		m.cfg.Logger.Warn("ill", "level", r.Level, "because", r.Because)
	case r.Level == 0 && old.Level != 0:
		m.cfg.Logger.Info("well again", "was", old.Because)
	}
	if r.Database != "" && old.Database == "" {
		m.cfg.Logger.Warn("a database is not online", "because", r.Database)
	}
	if r.Lost != "" && old.Lost == "" {
		m.cfg.Logger.Error("the storage lost a write", "because", r.Lost)
	}
	m.cfg.Found()
}
