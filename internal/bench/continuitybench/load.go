package continuitybench

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/measure/ledger"
	"github.com/coteriedb/coterie/internal/measure/session"
)

const (
	// appName is the application_name of every client, by which the view of sessions is asked.
	appName = "coterie continuity"
	// patience is how long a client waits for an answer: longer than the 30 s for which a session waits for a primary.
	patience = 35 * time.Second
	// perHost is how long a client waits for one listener to let it in. On a busy machine it must not go to another one
	// than its own.
	perHost = 30 * time.Second
	// backWithin is how long a fault may keep a client from its next answer.
	backWithin = 90 * time.Second
)

// place is how a client reaches the group.
type place struct {
	node string // whose listener it connects to first
	own  bool   // that is the node of the primary that the fault is about
	tls  bool
}

// way names the kind of place in samples.
func (p place) way() string {
	who, how := "other", "plain"
	if p.own {
		who = "own"
	}
	if p.tls {
		how = "TLS"
	}
	return who + " listener, " + how
}

// placesOf spreads n clients: half at the listener of the primary, half at those of the others in turn, and half of
// each by TLS.
func placesOf(n int, primary string, others []string) []place {
	out := make([]place, n)
	for i := range out {
		p := place{node: primary, own: true, tls: i/2%2 == 1}
		if i%2 == 1 {
			p.node, p.own = others[i/2%len(others)], false
		}
		out[i] = p
	}
	return out
}

// load is the clients of one run.
type load struct {
	lab    Lab
	ledger *ledger.Ledger
	origin time.Time
	tpcb   []*client
	states []*stateful
	pace   time.Duration // from the end of a transaction to the next of the same client

	end  context.CancelFunc
	done sync.WaitGroup
	mu   sync.Mutex
	err  error // guarded by mu: the first failure of the measurement itself
}

func (l *load) now() time.Duration { return time.Since(l.origin) }

func (l *load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

func (l *load) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// visitor is what both kinds of clients are: a place, a session, and what was seen of it.
type visitor struct {
	trace
	number int
	place  place
	home   string // the address of the listener of place
	load   *load
	s      *session.Session
}

func (l *load) visitor(number int, p place) (*visitor, error) {
	dsn := l.lab.ReadWrite()
	if !p.tls {
		dsn += "&sslmode=disable"
	}
	at := slices.Index(l.lab.Nodes(), p.node)
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, fmt.Errorf("the group's connection string: %w", err)
	}
	hosts := strings.Split(u.Host, ",")
	if at < 0 || at >= len(hosts) {
		return nil, fmt.Errorf("the group's connection string has no listener of %s", p.node)
	}
	s, err := session.New(session.Options{DSN: dsn, Start: at, Timeout: patience, PerHost: perHost, Name: appName})
	return &visitor{number: number, place: p, home: hosts[at], load: l, s: s}, err
}

// visitors returns the visitors of all clients.
func (l *load) visitors() (out []*visitor) {
	for _, c := range l.tpcb {
		out = append(out, c.visitor)
	}
	for _, s := range l.states {
		out = append(out, s.visitor)
	}
	return out
}

// open connects all clients and prepares their statements and states. Nothing is asked beyond that until run.
func (l *load) open(ctx context.Context, clients, sessions []place) error {
	for i, p := range clients {
		v, err := l.visitor(i, p)
		if err != nil {
			return err
		}
		l.tpcb = append(l.tpcb, &client{visitor: v})
	}
	for i, p := range sessions {
		v, err := l.visitor(i, p)
		if err != nil {
			return err
		}
		l.states = append(l.states, &stateful{visitor: v, checks: make(chan chan error)})
	}
	var all sync.WaitGroup
	errs := make([]error, len(l.tpcb)+len(l.states))
	for i, c := range l.tpcb {
		all.Go(func() { errs[i] = c.settle(ctx, c.prepare) })
	}
	for i, s := range l.states {
		all.Go(func() { errs[len(l.tpcb)+i] = s.settle(ctx, s.setUp) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// run starts the requests of all clients. stop ends them.
func (l *load) run(ctx context.Context) {
	ctx, l.end = context.WithCancel(ctx)
	for _, c := range l.tpcb {
		l.done.Go(func() { c.run(ctx) })
	}
	for _, s := range l.states {
		l.done.Go(func() { s.run(ctx) })
	}
}

// stop lets the requests under way end, and closes all clients.
func (l *load) stop() error {
	if l.end != nil {
		l.end()
	}
	l.done.Wait()
	for _, v := range l.visitors() {
		v.s.Close()
	}
	return l.failure()
}

// back waits until every client has had an answer to a request that it sent after since.
func (l *load) back(ctx context.Context, since time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, backWithin, fmt.Errorf("waited %v for an answer to every client", backWithin))
	defer cancel()
	return retry.Until(ctx, 20*time.Millisecond, func() (bool, error) {
		for _, v := range l.visitors() {
			if !v.answeredSince(since) {
				return false, l.failure()
			}
		}
		return true, l.failure()
	})
}

// check has every stateful session look whether it is as it was. It returns what is wrong with them.
func (l *load) check(ctx context.Context) (wrong []string) {
	ctx, cancel := context.WithTimeoutCause(ctx, backWithin, fmt.Errorf("waited %v for every session to look at its state", backWithin))
	defer cancel()
	for _, s := range l.states {
		answer := make(chan error, 1)
		select {
		case s.checks <- answer:
		case <-ctx.Done():
			return append(wrong, context.Cause(ctx).Error())
		}
		if err := <-answer; err != nil {
			wrong = append(wrong, fmt.Sprintf("%s of %s: %v", s.place.way(), s.place.node, err))
		}
	}
	return wrong
}

// settle connects to the listener of the client's place, and to no other, and prepares the session. On a busy machine a
// listener may not answer in time, and the session would go on to the next.
func (v *visitor) settle(ctx context.Context, prepare func(context.Context) error) error {
	for {
		if err := v.connect(ctx, prepare); err != nil || v.s.Host() == v.home {
			return err
		}
		v.s.Drop()
		session.Pause(ctx)
		one, err := v.load.visitor(v.number, v.place)
		if err != nil {
			return err
		}
		v.s = one.s
	}
}

// connect connects, and prepares the session.
func (v *visitor) connect(ctx context.Context, prepare func(context.Context) error) error {
	for {
		if err := v.s.Connect(ctx); err != nil {
			return err
		}
		p, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		err := prepare(p)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		if outcome, _ := session.Classify(err); outcome == session.Fail && !v.s.Conn().IsClosed() {
			return fmt.Errorf("prepare a session: %w", err)
		}
		v.s.Drop() // the server has gone meanwhile
		session.Pause(ctx)
	}
}
