package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/node/operations"
)

// noStore is a quorum that does not answer.
type noStore struct{ operations.Store }

func (noStore) Token(context.Context, string) (etcd.Token, error) {
	return etcd.Token{}, etcd.ErrNoQuorum
}

// TestJoinWaitsForTheNode: a join that arrives while the node starts reaches the store when there is one, and is
// refused as unavailable if that takes too long or the joiner's time is over.
func TestJoinWaitsForTheNode(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		ready, patience, took time.Duration
		message               string
	}{
		"a complete node":                {0, time.Minute, 0, "the quorum does not answer; try again"},
		"complete while the join waits":  {4 * time.Second, time.Minute, 4 * time.Second, "the quorum does not answer; try again"},
		"complete too late":              {time.Hour, time.Minute, admitWait, "this node is still starting; try again"},
		"the joiner's time is over":      {time.Hour, time.Second, time.Second, "this node is still starting; try again"},
		"complete when no time was left": {2 * time.Second, time.Second, time.Second, "this node is still starting; try again"},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := &node{ready: make(chan struct{})}
			open := func() { n.operate = operations.New(operations.Config{Store: noStore{}}); close(n.ready) }
			if tt.ready == 0 {
				open()
			} else {
				defer time.AfterFunc(tt.ready, open).Stop()
			}
			ctx, cancel := context.WithTimeout(t.Context(), tt.patience)
			defer cancel()
			began := time.Now()
			grant, err := n.admit(ctx, "1", func([]byte) bool { t.Errorf("%s: a proof is checked", name); return false }, endpoint.JoinRequest{ID: "n2"})
			var refused *endpoint.RemoteError
			if !errors.As(err, &refused) || refused.Code != endpoint.CodeUnavailable || refused.Message != tt.message || time.Since(began) != tt.took {
				t.Errorf("%s: %v after %v", name, err, time.Since(began))
			}
			if grant.Group.ID != "" || len(grant.CAKeyPEM) > 0 {
				t.Errorf("%s: a grant %+v", name, grant)
			}
		})
	}
}
