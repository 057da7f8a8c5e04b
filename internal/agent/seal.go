package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// SealTimeout bounds how long a member takes to answer a seal; a candidate asks again.
const SealTimeout = 5 * time.Second

// sealer is the only place where this node's promise and its source of WAL change, one at a time, so that no stream of an
// older epoch can begin after a promise was given (S4).
type sealer struct {
	self     ag.ReplicaID
	marks    *Marks
	instance Instance
	keeper   Keeper
	upstream Upstream
	lease    *lease
	log      *slog.Logger
	turn     chan struct{} // holds one token: whoever has it may change promise or source
}

func (s *sealer) enter(ctx context.Context) error {
	select {
	case <-s.turn:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("another seal or change of source is under way: %w", ctx.Err())
	}
}

func (s *sealer) leave() { s.turn <- struct{}{} }

// follow points the upstream at the leader of an epoch, unless a later one was promised.
func (s *sealer) follow(ctx context.Context, leader ag.Replica, e ag.Epoch) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	promised, err := s.marks.Promised()
	if err != nil {
		return err
	}
	if e < promised {
		return fmt.Errorf("epoch %d was promised to a candidate; WAL of epoch %d is not taken", promised, e)
	}
	if e > promised {
		if err := s.marks.SetPromised(e); err != nil {
			return err
		}
	}
	s.upstream.Follow(leader, e)
	return nil
}

// Seal promises the epoch, closes every older source, waits until the walreceiver is gone, and reports where WAL ends here. A
// server that still leads an older epoch is fenced first. The report stays true until a leader of that epoch or a later one
// feeds this node (safety specification 2.1).
func (s *sealer) Seal(ctx context.Context, req SealRequest) (ag.SealReport, error) {
	ctx, cancel := context.WithTimeout(ctx, SealTimeout)
	defer cancel()
	if err := s.enter(ctx); err != nil {
		return ag.SealReport{}, err
	}
	defer s.leave()
	promised, err := s.marks.Promised()
	if err != nil {
		return ag.SealReport{}, err
	}
	if req.Epoch < promised {
		return ag.SealReport{}, fmt.Errorf("epoch %d was already promised; %s asks for %d", promised, req.Candidate, req.Epoch)
	}
	if req.Epoch > promised {
		if err := s.marks.SetPromised(req.Epoch); err != nil {
			return ag.SealReport{}, err
		}
	}
	if err := s.upstream.Seal(ctx); err != nil {
		return ag.SealReport{}, fmt.Errorf("close older streams: %w", err)
	}
	if armed := ag.Epoch(s.lease.armed.Load()); armed != 0 && armed < req.Epoch {
		s.lease.void() // the gate first: it takes no time
		if err := s.keeper.Fence(ctx, fmt.Sprintf("%s seals epoch %d", req.Candidate, req.Epoch)); err != nil {
			return ag.SealReport{}, fmt.Errorf("fence before sealing: %w", err)
		}
		s.lease.armed.Store(0)
	}
	return s.report(ctx, req)
}

// report waits for the walreceiver to be gone and reads the end of WAL.
func (s *sealer) report(ctx context.Context, req SealRequest) (ag.SealReport, error) {
	c, err := s.marks.Copy()
	if err != nil {
		return ag.SealReport{}, err
	}
	r := ag.SealReport{Member: s.self, Copy: c.Copy, Epoch: req.Epoch}
	if s.instance.Data() != ag.DataPresent {
		return r, fmt.Errorf("this node's data directory is %s", s.instance.Data())
	}
	for {
		obs, err := s.instance.Observe(ctx)
		switch {
		case err != nil: // down, or not answering: the files say it
			if r.Position, err = s.instance.EndOfWAL(ctx); err != nil {
				return r, fmt.Errorf("read the end of WAL: %w", err)
			}
			r.Promotable = true // once it is started
			return r, nil
		case !obs.InRecovery:
			return r, fmt.Errorf("the server here is not in recovery")
		case !obs.Receiving:
			if err := s.instance.EndConflicts(ctx); err != nil {
				s.log.Warn("readers may delay a promotion here", "err", err)
			}
			r.Position, err = s.instance.EndOfWAL(ctx)
			r.Promotable = err == nil
			return r, err
		}
		select {
		case <-ctx.Done():
			return r, fmt.Errorf("the walreceiver did not end: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}
