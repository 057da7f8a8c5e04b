package clientport

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/coteriedb/coterie/internal/listener"
)

// forwardCancel asks the other nodes, all at once, which of them minted the key. There are at most eight, and one that
// is dead does not keep the others from being asked. The first that knows the key ends the search.
func (p *Port) forwardCancel(ctx context.Context, _ uint8, key listener.CancelKey) error {
	g := p.c.Group()
	if g == nil {
		return errors.New("this node has not seen its group yet")
	}
	ctx, found := context.WithCancel(ctx)
	defer found()
	var asked sync.WaitGroup
	var known atomic.Bool
	for _, r := range g.Replicas {
		if r.ID == p.c.Self || !r.HasData() {
			continue
		}
		asked.Go(func() {
			if p.c.Peers.Cancel(ctx, r, key) == nil {
				known.Store(true)
				found()
			}
		})
	}
	asked.Wait()
	if !known.Load() {
		return errors.New("no node that answered knows the key")
	}
	return nil
}

// Cancel delivers a cancel request of another node. A key that this node did not mint is an error.
func (p *Port) Cancel(ctx context.Context, key listener.CancelKey) error {
	if s := p.server.Load(); s == nil || !s.Cancel(ctx, key) {
		return errors.New("no session has that key")
	}
	return nil
}
