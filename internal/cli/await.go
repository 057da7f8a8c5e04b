package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Awaited is a member that a command waits for.
type Awaited struct {
	ID    ag.ReplicaID
	What  string // that it is to do
	Limit time.Duration
}

// AwaitReplica waits until a member is as it should be, for a few looks in succession: what the node of the command
// knows of another may be a second old. It says what it waits for, and is an error after the limit.
func AwaitReplica(c *cobra.Command, cl *api.Client, w Awaited, is func(api.Status, api.Replica) bool) error {
	ctx, cancel := context.WithTimeout(c.Context(), w.Limit)
	defer cancel()
	began, said, good := time.Now(), time.Now(), 0
	for good < 8 {
		s, err := cl.Status(ctx)
		m, _ := s.Replica(w.ID)
		if good++; err != nil || !is(s, m) {
			good = 0
		}
		if time.Since(said) > 3*time.Second {
			said = time.Now()
			Say(c, "waiting for %s to %s … %v (%s)", w.ID, w.What, time.Since(began).Round(time.Second), m.Sync)
		}
		if retry.Sleep(ctx, 200*time.Millisecond) != nil {
			return fail.Unhealthyf("%s did not %s within %v; see coterie status", w.ID, w.What, w.Limit)
		}
	}
	return nil
}
