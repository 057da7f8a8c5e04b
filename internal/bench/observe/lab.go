package observe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Lab is a running group on this machine.
type Lab interface {
	Nodes() []string                             // names of the replicas, the first primary first
	Dir(node string) string                      // directory of the node
	Agent(node string) Agent                     // agent of the node, whether or not it runs
	ReadWrite() string                           // libpq URI that lists the listener of every node
	ReadOnly() string                            // the same URI with read intent
	DSN(node string) string                      // connection string of the node's own server, not through the listener
	Kill(ctx context.Context, node string) error // kills every process of the node at one instant
	Start(ctx context.Context, node string) error
	// Pause stops every process of the node, like a machine that hangs. Resume continues them.
	Pause(ctx context.Context, node string) error
	Resume(ctx context.Context, node string) error
	// Leave releases the group and leaves it running.
	Leave()
	// Down ends every process, and removes the files unless keepFiles is true.
	Down(ctx context.Context, keepFiles bool) error
}

// Agent is the management interface of one node. api.Client implements it.
type Agent interface {
	Status(ctx context.Context) (api.Status, error)
	Decisions(ctx context.Context) ([]api.Decision, error)
	Failover(ctx context.Context, r api.FailoverRequest) (api.FailoverResult, error)
}

// Deadlines for the actions of the group. They are far above the expected times, because a slow machine is not a
// failure.
const (
	FailoverBudget = 90 * time.Second
	RejoinBudget   = 2 * time.Minute
	DownBudget     = 30 * time.Second
)

// askFor bounds one request to an agent that may be dead.
const askFor = time.Second

// Status returns the status of a node as its own agent reports it. A dead agent is an error after at most a second.
func Status(ctx context.Context, l Lab, node string) (api.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	return l.Agent(node).Status(ctx)
}

// Primary returns the status of the node that takes writes, as that node itself sees it.
func Primary(ctx context.Context, l Lab) (api.Status, error) {
	last := errors.New("no replica leads")
	for _, n := range l.Nodes() {
		s, err := Status(ctx, l, n)
		if err != nil {
			last = err
			continue
		}
		if string(s.Primary) == n && s.WriteOpen {
			slices.SortFunc(s.Replicas, func(a, b api.Replica) int { return strings.Compare(string(a.Name), string(b.Name)) })
			return s, nil
		}
	}
	return api.Status{}, fmt.Errorf("find the primary: %w", last)
}

// Await calls ok every 50 ms until it returns true. After budget it fails with an error that names the condition, what,
// and the last error of ok.
func Await(ctx context.Context, budget time.Duration, what string, ok func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, budget, fmt.Errorf("waited %v for %s", budget, what))
	defer cancel()
	var last error
	err := retry.Until(ctx, 50*time.Millisecond, func() (bool, error) {
		done, err := ok(ctx)
		if err != nil && ctx.Err() == nil {
			last = err
		}
		return done, nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("%w; last seen: %w", err, last)
	}
	return err
}

// Synchronized reports whether the primary counts at least n replicas as synchronized, itself included, and whether
// node is one of them unless it is empty. Otherwise the error names the replicas that are not synchronized.
func Synchronized(ctx context.Context, l Lab, n int, node string) (bool, error) {
	s, err := Primary(ctx, l)
	if err != nil {
		return false, err
	}
	var names, waiting []string
	for _, r := range s.Replicas {
		counted := slices.ContainsFunc(s.SyncMembers, func(m ag.Member) bool { return m.ID == r.Name })
		// The role is compared, too: a node that has just started is listed with the last role that it reported.
		if r.Name == s.Node || counted && r.Role == ag.RoleSecondary && r.Sync == ag.Synchronized {
			names = append(names, string(r.Name))
		} else {
			w := fmt.Sprintf("%s is %s and %s", r.Name, r.Role, r.Sync)
			if r.Progress != "" {
				w += " (" + r.Progress + ")"
			}
			waiting = append(waiting, w)
		}
	}
	if len(names) >= n && (node == "" || slices.Contains(names, node)) {
		return true, nil
	}
	return false, errors.New(strings.Join(waiting, ", "))
}

// Own returns the replica of the node that reported s, or the zero Replica if s does not list it.
func Own(s api.Status) api.Replica {
	i := slices.IndexFunc(s.Replicas, func(r api.Replica) bool { return r.Name == s.Node })
	if i < 0 {
		return api.Replica{}
	}
	return s.Replicas[i]
}

// Target returns a synchronized secondary: one other than avoid if there is one, and the empty string if none is
// synchronized.
func Target(s api.Status, avoid string) ag.ReplicaID {
	var to ag.ReplicaID
	for _, r := range s.Replicas {
		if r.Name != s.Node && r.Sync == ag.Synchronized && (to == "" || string(to) == avoid) {
			to = r.Name
		}
	}
	return to
}
