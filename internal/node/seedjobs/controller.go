package seedjobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/source"
	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
)

// Config is what a Controller needs of its node. View, Snapshot and Wake are the agent's; no function may be nil.
type Config struct {
	Self     ag.ReplicaID
	StateDir string // the request, the history and the marks of an unfinished copy are kept there
	Logger   *slog.Logger

	View     func() *ag.View        // nil before the agent's first turn
	Snapshot func() *agent.Snapshot // nil before the agent's first read of the record
	Wake     func()                 // has the agent decide again now
	Routes   func() *ag.Routes      // in force on this node's listener; nil: none yet
	Replica  func(ag.ReplicaID) (ag.Replica, bool)
	Dial     func(ctx context.Context, source ag.Replica) (net.Conn, error) // opens a connection to a replica's seeding source

	Data         string                                   // the data directory
	Major        int                                      // the version of this node's programs; 0: not compared with that of a source
	Connect      func(context.Context) (*pgx.Conn, error) // to the server that runs on it
	ForgetRewind func() error                             // removes the mark of a rewind that failed before
	Tablespaces  map[string]string                        // the place of a tablespace of the source on this node; others keep their path
	NodeFiles    func(ag.CopyID) map[string][]byte        // files that must be in a copy before it can be started
}

// Controller keeps the operators' requests for this node's copy and their history, and carries them out. It implements
// agent.SeedRequests and agent.Seeder.
type Controller struct {
	Config
	journal *seeding.Journal
	moved   atomic.Pointer[place] // nil: Data and Major
	verify  chan string           // ids of verifications to run

	// The functions that copy and verify; tests replace them.
	run   func(context.Context, seeding.Options) (seeding.Result, error)
	check func(context.Context, source.VerifyOptions) (pagesum.Report, error)

	mu        sync.Mutex              // guards the fields below
	request   Request                 // the one that is open; zero: none
	withdrawn string                  // the reason of a request that was cancelled before its attempt began; "": none since the last request
	open      string                  // the operation that has not ended; "": none
	cancel    context.CancelCauseFunc // of the attempt under way; nil: none
	stop      context.CancelCauseFunc // of the verification under way, beside which an attempt may begin; nil: none
	failures  int                     // in a row, in epoch
	epoch     ag.Epoch                // of the last failure
	retryAt   time.Time               // no attempt begins before
	failed    string                  // why the last attempt failed
}

// Request is what an operator asked for. It is kept on disk until it is done.
type Request struct {
	Asked     bool      `json:"asked,omitempty"`
	Copy      ag.CopyID `json:"copy,omitempty"` // the one to be replaced
	From      string    `json:"from,omitempty"` // a directory to begin with
	Because   string    `json:"because,omitempty"`
	Cancelled string    `json:"cancelled,omitempty"` // when; no copy is made until an operator requests one
}

// The pause after a failed copy is retryFirst, doubled with each failure in a row up to retryMost.
const (
	retryFirst = 300 * time.Millisecond
	retryMost  = time.Minute
)

// Open returns the controller of a node with the request and the history that an earlier process left in c.StateDir. A
// history that cannot be read begins anew; a request that cannot be read is an error, because it may have cancelled
// seeding.
func Open(c Config) (*Controller, error) {
	j, err := seeding.OpenJournal(filepath.Join(c.StateDir, "seedings.json"))
	if err != nil {
		c.Logger.Warn("the history of seedings begins anew", "err", err)
	}
	if err := tree.Tidy(c.Data, c.StateDir); err != nil { // the next copy does it again
		c.Logger.Warn("what a seeding has left beside its copy is not removed", "err", err)
	}
	d := &Controller{Config: c, journal: j, verify: make(chan string, 1), run: seeding.Run, check: source.Verify}
	if op, ok := j.Last(); ok && !op.State.Ended() {
		d.open = op.ID
	}
	b, err := os.ReadFile(d.file())
	switch {
	case errors.Is(err, os.ErrNotExist):
		return d, nil
	case err == nil:
		err = json.Unmarshal(b, &d.request)
	}
	if err != nil {
		return nil, fmt.Errorf("what was asked of this node's copy is in %s and cannot be read: %w; without that file the node starts as if nothing had been asked, "+
			"and a copy whose seeding was cancelled is made after all", d.file(), err)
	}
	return d, nil
}

// place is where this node's copy is, and the version of its programs.
type place struct {
	data  string
	major int
}

// MoveTo has copies made in another data directory from now on. None may be under way.
func (c *Controller) MoveTo(data string, major int) { c.moved.Store(&place{data, major}) }

func (c *Controller) place() place {
	if p := c.moved.Load(); p != nil {
		return *p
	}
	return place{c.Data, c.Major}
}

func (c *Controller) file() string { return filepath.Join(c.StateDir, "seed-wish.json") }

// save makes r the open request, on disk first. c.mu is held.
func (c *Controller) save(r Request) error {
	if r == (Request{}) {
		if err := durable.Remove(c.file()); err != nil {
			return fmt.Errorf("forget what was asked: %w", err)
		}
		c.request = r
		return nil
	}
	if err := durable.ReplaceJSON(c.file(), r); err != nil {
		return fmt.Errorf("remember what was asked: %w", err)
	}
	c.request = r
	return nil
}

// ReseedReason implements agent.SeedRequests.
func (c *Controller) ReseedReason(cp ag.CopyID) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.request.Asked && c.request.Cancelled == "" && c.request.Copy == cp {
		return c.request.Because
	}
	return ""
}

// BlockedReason implements agent.SeedRequests.
func (c *Controller) BlockedReason(e ag.Epoch) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.request.Cancelled != "":
		return fmt.Sprintf("seeding was cancelled at %s; coterie replica seed %s goes on with it", c.request.Cancelled, c.Self)
	case c.epoch == e && time.Now().Before(c.retryAt):
		return fmt.Sprintf("copy attempt %d failed: %s; next at %s", c.failures, c.failed, c.retryAt.Format(time.TimeOnly))
	}
	return ""
}

// Operations returns this node's copies and verifications, the oldest first.
func (c *Controller) Operations() []seeding.Operation { return c.journal.List() }

// Copying returns the copy that has not ended, as JSON for this node's status; nil: none. It implements
// agent.Config.Copying.
func (c *Controller) Copying() json.RawMessage {
	op, ok := c.journal.Last()
	if !ok || op.State.Ended() || op.Report != nil {
		return nil
	}
	b, err := json.Marshal(op)
	if err != nil {
		return nil // the other nodes show less of it
	}
	return b
}

// Run runs verifications until ctx is done, and drops requests that a change of the primary has made void.
func (c *Controller) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case id := <-c.verify:
			c.verifyOnce(ctx, id)
		case <-time.After(boottime.UntilNext(2 * time.Second)):
			c.dropOvertaken()
		}
	}
}

// dropOvertaken drops the open request once this node leads: the others copy from it.
func (c *Controller) dropOvertaken() {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := c.View()
	if v == nil || v.Record.Epoch.Leader != c.Self || c.request == (Request{}) {
		return
	}
	if err := c.save(Request{}); err != nil {
		c.Logger.Warn("a request for a new copy that is void was not removed", "err", err)
		return
	}
	c.journal.Change(c.open, func(o *seeding.Operation) {
		o.State, o.Ended, o.FailedAt = seeding.Failed, time.Now(), time.Now()
		o.Failure = &seeding.Failure{Code: 207, State: "INTERRUPTED", Text: "this node has become the primary"}
	})
	c.open = ""
}
