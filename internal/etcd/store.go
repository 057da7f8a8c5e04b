package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

const (
	defaultCallTimeout = time.Second
	// penalty is how long an endpoint that failed is tried after the others.
	penalty = 2 * time.Second
	// roundPause separates two rounds over all endpoints when each failed at once, as during an election.
	roundPause = 25 * time.Millisecond
)

var (
	groupPattern = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	namePattern  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
)

// Store reads and changes the record of one group. Reads are linearizable. All methods may be called concurrently;
// changes of one Store are made one after the other, except Renew, which never waits for them.
type Store struct {
	cfg  StoreConfig
	keys keys
	back backend
	log  *slog.Logger

	mu        sync.Mutex
	endpoints []string
	last      map[string]bool           // endpoints that are tried only after all others
	failed    map[string]time.Time      // when an endpoint failed last
	watches   map[*watchStream]struct{} // streams to move away from an endpoint that fails
	places    map[string][]noted        // of the keys of the record, as read last
	closed    context.Context
	close     context.CancelFunc
	wg        sync.WaitGroup

	attempts attempts
	renewal  renewal
}

// OpenStore prepares a store client; it makes no connection yet.
func OpenStore(c StoreConfig) (*Store, error) {
	if c.Dial == nil {
		return nil, errors.New("open quorum store: no dialer")
	}
	return openStore(c, newWire(c.Dial))
}

func openStore(c StoreConfig, back backend) (*Store, error) {
	if !groupPattern.MatchString(string(c.Group)) {
		return nil, fmt.Errorf("open quorum store: group %q is not a UUID in lower case", c.Group)
	}
	if len(c.Endpoints) == 0 {
		return nil, errors.New("open quorum store: no endpoints")
	}
	if !namePattern.MatchString(c.Attempt) {
		return nil, fmt.Errorf("open quorum store: incarnation %q is not usable in a key", c.Attempt)
	}
	owner := string(c.Replica)
	if owner == "" {
		owner = c.Attempt
	}
	if !namePattern.MatchString(owner) {
		return nil, fmt.Errorf("open quorum store: replica %q is not usable in a key", owner)
	}
	if c.CallTimeout <= 0 {
		c.CallTimeout = defaultCallTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Store{
		cfg: c, keys: newKeys(c.Group, owner), back: back, log: c.Logger,
		endpoints: slices.Clone(c.Endpoints), failed: map[string]time.Time{}, watches: map[*watchStream]struct{}{}, places: map[string][]noted{},
		closed: ctx, close: cancel,
		attempts: attempts{turn: make(chan struct{}, 1)}, renewal: renewal{turn: make(chan struct{}, 1)},
	}
	return s, nil
}

// SetEndpoints replaces the endpoints and their order of preference. A PRIMARY puts its own member at the end of them:
// its disk is the one that is busy. Those in last are tried only in a round in which every other one has failed, or has
// not answered in its time: they are the witnesses', and the member of a stolen one may answer that a change was made
// although it was not.
func (s *Store) SetEndpoints(endpoints, last []string) {
	endpoints = append(slices.Clone(endpoints), last...)
	if len(endpoints) == 0 {
		return
	}
	s.mu.Lock()
	s.endpoints, s.last = endpoints, map[string]bool{}
	for _, name := range last {
		s.last[name] = true
	}
	for w := range s.watches {
		if !slices.Contains(endpoints, w.endpoint) {
			w.cancel()
		}
	}
	for name := range s.failed {
		if !slices.Contains(endpoints, name) {
			delete(s.failed, name)
		}
	}
	s.mu.Unlock()
	s.back.keep(endpoints)
}

// Close ends every call and watch under way and waits for the watches' goroutines.
func (s *Store) Close() error {
	s.mu.Lock()
	s.close()
	s.mu.Unlock()
	s.back.close()
	s.wg.Wait()
	return nil
}

// order returns the endpoints: preferred ones first, then those that failed recently, the oldest failure first. The
// ones that are tried last come after all of these, in the same order.
func (s *Store) order() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.Clone(s.endpoints)
	now := time.Now()
	bad := func(name string) time.Time {
		if t, ok := s.failed[name]; ok && now.Sub(t) < penalty {
			return t
		}
		return time.Time{}
	}
	slices.SortStableFunc(out, func(a, b string) int {
		switch {
		case s.last[a] == s.last[b]:
			return bad(a).Compare(bad(b))
		case s.last[a]:
			return 1
		}
		return -1
	})
	return out
}

func (s *Store) succeeded(endpoint string) {
	s.mu.Lock()
	delete(s.failed, endpoint)
	s.mu.Unlock()
}

// fell records that an endpoint failed. A watch there may be dead unnoticed, so it moves to another one.
func (s *Store) fell(endpoint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.endpoints, endpoint) {
		s.failed[endpoint] = time.Now()
	}
	for w := range s.watches {
		if w.endpoint == endpoint && len(s.endpoints) > 1 {
			w.cancel()
		}
	}
}

// bounded returns ctx with the deadline of one call, ended also by Close.
func (s *Store) bounded(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	stop := context.AfterFunc(s.closed, cancel)
	return ctx, func() { stop(); cancel() }
}

var errNoEndpoint = errors.New("no member of the quorum is known")

// answer is what one endpoint returned.
type answer[T any] struct {
	endpoint string
	value    T
	err      error
}

// ask asks the endpoints until one answers, an answer is final, or ctx ends. ctx must have a deadline. The next
// endpoint is asked when the one before has failed, or has not answered in half of the remaining time: so a dead one
// costs little. One that is slow goes on meanwhile, and has all of the time: over a slow way every endpoint takes long.
// maySent reports whether a request besides the one that was answered could have reached a member: then the outcome of
// a change is unknown.
func ask[T any](ctx context.Context, s *Store, try func(ctx context.Context, endpoint string) (T, error)) (value T, maySent bool, err error) {
	for {
		rctx, cancel := context.WithCancel(ctx)
		r := &round[T]{s: s, try: try, caller: ctx, ctx: rctx, rest: s.order()}
		value, err = r.wait()
		cancel() // what is under way
		r.running.Wait()
		maySent = maySent || r.maySent
		switch {
		case err == nil || isFinal(err):
			return value, maySent, err
		case s.closed.Err() != nil:
			return value, maySent, ErrClosed
		case ctx.Err() != nil || retry.Sleep(ctx, roundPause) != nil:
			return value, maySent, fmt.Errorf("%w: %w: %w", ErrNoQuorum, ctx.Err(), err)
		}
	}
}

func isFinal(err error) bool {
	var final finalError
	return errors.As(err, &final)
}

// round asks each endpoint once.
type round[T any] struct {
	s       *Store
	try     func(ctx context.Context, endpoint string) (T, error)
	caller  context.Context
	ctx     context.Context // ends with the round
	rest    []string        // not asked yet
	asked   []string        // and have not answered yet
	maySent bool
	answers chan answer[T]
	running sync.WaitGroup
}

// next asks the next endpoint, if there is one. It returns after what time the one after it is to be asked.
func (r *round[T]) next() time.Duration {
	deadline, _ := r.ctx.Deadline()
	if len(r.rest) > 0 {
		name := r.rest[0]
		r.rest, r.maySent, r.asked = r.rest[1:], r.maySent || len(r.asked) > 0, append(r.asked, name)
		r.running.Go(func() {
			value, err := r.try(r.ctx, name)
			r.answers <- answer[T]{name, value, err}
		})
	}
	return time.Until(deadline) / 2
}

// wait returns the first answer, the first final error, or the errors of all endpoints.
func (r *round[T]) wait() (value T, err error) {
	if len(r.rest) == 0 {
		return value, errNoEndpoint
	}
	r.answers = make(chan answer[T], len(r.rest))
	patience := time.NewTimer(r.next())
	defer patience.Stop()
	var tried []error
	for len(r.asked) > 0 {
		select {
		case <-patience.C:
			if len(r.rest) > 0 {
				patience.Reset(r.next())
			}
		case a := <-r.answers:
			before := slices.Index(r.asked, a.endpoint)
			if a.err == nil || isFinal(a.err) {
				r.s.succeeded(a.endpoint)
				for _, slow := range r.asked[:before] {
					r.s.fell(slow)
				}
				return a.value, a.err
			}
			r.asked = slices.Delete(r.asked, before, before+1)
			r.failed(a)
			tried = append(tried, a.err)
			if len(r.rest) > 0 && r.ctx.Err() == nil && r.s.closed.Err() == nil {
				patience.Reset(r.next())
			}
		}
	}
	return value, errors.Join(tried...)
}

func (r *round[T]) failed(a answer[T]) {
	var unsent notSentError
	if !errors.As(a.err, &unsent) {
		r.maySent = true
	}
	if !errors.Is(r.caller.Err(), context.Canceled) { // a cancelled call is not a failure of the endpoint
		r.s.fell(a.endpoint)
		r.s.log.Debug("quorum endpoint failed", "endpoint", a.endpoint, "error", a.err)
	}
}

// read runs a transaction that changes nothing.
func (s *Store) read(ctx context.Context, ops ...op) (txnResult, error) {
	ctx, cancel := s.bounded(ctx, s.cfg.CallTimeout)
	defer cancel()
	res, _, err := ask(ctx, s, func(ctx context.Context, endpoint string) (txnResult, error) {
		res, err := s.back.txn(ctx, endpoint, txn{Then: ops})
		res.from = endpoint
		return res, err
	})
	return res, err
}

// keys are the keys of one group. Two groups never share a prefix: it ends in '/' and a UUID has a fixed length.
type keys struct {
	prefix, epoch, state, lead, config, op, status, vote, token, attempt string

	signedEpoch, signedState string // the signatures of epoch and state
}

func newKeys(group ag.GroupID, owner string) keys {
	p := "/coterie/v1/" + string(group) + "/"
	return keys{
		prefix: p, epoch: p + "epoch", state: p + "state", lead: p + "lead", config: p + "config", op: p + "op",
		status: p + "status/", vote: p + "vote/", token: p + "token/", attempt: p + "attempt/" + owner,
		signedEpoch: p + "signature/epoch", signedState: p + "signature/state",
	}
}
