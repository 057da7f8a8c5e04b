package web

import (
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/lib/admission"
)

// Bounds of changes. An answer is kept for a request that is made again.
const (
	maxDeeds    = 200 // that are kept, those under way included
	roleDeeds   = 40  // of one role
	deedLife    = time.Hour
	maxRunning  = 4 // under way at once
	roleRunning = 2 // of one role
	deedTime    = 20 * time.Minute
	deedWait    = 20 * time.Second // how long a request waits for the end of its change
	deedShown   = time.Minute      // how long a new stream is told of a change that has ended
	maxKey      = 128              // bytes of an Idempotency-Key
)

// Changes of one role, and of all.
var (
	eachDeeds = admission.Rate{PerSecond: 0.2, Burst: 10}
	allDeeds  = admission.Rate{PerSecond: 1, Burst: 40}
)

// Requests for changes of one role, and of all, whatever becomes of them: for each the role is looked up.
var (
	eachAsks = admission.Rate{PerSecond: 1, Burst: 20}
	allAsks  = admission.Rate{PerSecond: 5, Burst: 100}
)

// The states of a Deed.
const (
	deedRunning = "running"
	deedDone    = "done"
	deedFailed  = "failed"
)

// Deed is the document of a change that was asked for.
type Deed struct {
	ID        string           `json:"id"`
	Change    string           `json:"change"`
	User      string           `json:"user"`
	State     string           `json:"state"` // running, done or failed
	Statement string           `json:"statement"`
	Message   string           `json:"message"`
	Number    int              `json:"number"` // of the message; 0: it has none
	Notices   []console.Notice `json:"notices,omitempty"`
	Began     time.Time        `json:"began"`
	Ended     time.Time        `json:"ended,omitzero"`
	Steps     []Step           `json:"steps,omitempty"` // of a failover
	Now       string           `json:"now,omitempty"`   // what is being done
	Error     *console.Error   `json:"error,omitempty"`
}

// Step is a step of a change.
type Step struct {
	Name string    `json:"name"`
	At   time.Time `json:"at,omitzero"` // when it was seen; zero: not yet
}

// deed is a change of a role, by its Idempotency-Key.
type deed struct {
	user, key string
	asked     [sha256.Size]byte // of what was asked for
	done      chan struct{}     // closed at its end

	mu  sync.Mutex // guards doc
	doc Deed
}

func (d *deed) document() Deed {
	d.mu.Lock()
	defer d.mu.Unlock()
	doc := d.doc
	doc.Steps = slices.Clone(doc.Steps)
	return doc
}

// over reports whether the change has ended.
func (d *deed) over() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// deeds are the changes that were asked for on this node lately.
type deeds struct {
	now    func() time.Time
	budget *admission.Budget
	asks   *admission.Budget

	mu   sync.Mutex // guards list
	list []*deed    // the oldest first
}

func newDeeds(now func() time.Time) *deeds {
	return &deeds{now: now, budget: admission.NewBudget(eachDeeds, allDeeds, 2*maxSessions), asks: admission.NewBudget(eachAsks, allAsks, 2*maxSessions)}
}

// The reasons why a change does not begin.
var (
	errOtherBody = &console.Error{State: "22023", Message: "this Idempotency-Key was used for another change", Hint: "Use a new key for each change, and the same one only to ask for the same change again."}
	errTooFast   = &console.Error{State: "53300", Message: "this role asks for changes too often", Hint: "Wait a few seconds."}
	errTooMany   = &console.Error{State: "53300", Message: "too many changes are under way", Hint: "Wait until one of them has ended: GET /api/v1/operations"}
)

// begin returns the change of a role and a key: the one that was asked for with the key, or a new one, which the caller
// has to end. doc says what is asked for, and by whom.
func (x *deeds) begin(doc Deed, key string, asked [sha256.Size]byte, boot time.Duration) (d *deed, fresh bool, err *console.Error) {
	user := doc.User
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forget()
	running, mine := 0, 0
	for _, d := range x.list {
		if d.user == user && d.key == key {
			if d.asked != asked {
				return nil, false, errOtherBody
			}
			return d, false, nil
		}
		if !d.over() {
			if running++; d.user == user {
				mine++
			}
		}
	}
	switch {
	case running >= maxRunning || mine >= roleRunning:
		return nil, false, errTooMany
	case !x.budget.Spend(user, 1, boot):
		return nil, false, errTooFast
	}
	doc.ID, doc.State, doc.Message, doc.Began = newID(), deedRunning, "it is under way", x.now().UTC()
	d = &deed{user: user, key: key, asked: asked, done: make(chan struct{}), doc: doc}
	x.list = append(x.list, d)
	return d, true, nil
}

// forget drops changes that have ended: those that are old, and the oldest ones beyond the number that is kept; mu is
// held.
func (x *deeds) forget() {
	x.list = slices.DeleteFunc(x.list, func(d *deed) bool { return d.over() && x.now().Sub(d.document().Ended) > deedLife })
	of := map[string]int{}
	for _, d := range x.list {
		of[d.user]++
	}
	all := len(x.list)
	x.list = slices.DeleteFunc(x.list, func(d *deed) bool {
		if !d.over() || all < maxDeeds && of[d.user] < roleDeeds {
			return false
		}
		all--
		of[d.user]--
		return true
	})
}

// drop forgets a change that did not begin.
func (x *deeds) drop(d *deed) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.list = slices.DeleteFunc(x.list, func(o *deed) bool { return o == d })
}

// all returns the documents of the changes that are kept, the oldest first.
func (x *deeds) all() []Deed {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forget()
	out := []Deed{}
	for _, d := range x.list {
		out = append(out, d.document())
	}
	return out
}
