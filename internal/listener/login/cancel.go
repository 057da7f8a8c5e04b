package login

import (
	"context"
	"time"
)

// maxForwards is how many cancel requests of all clients other nodes are asked about at once.
const maxForwards = 16

// CancelTime bounds the delivery of a cancel request.
const CancelTime = 5 * time.Second

// cancelRequest serves a connection that brought a CancelRequest. As in PostgreSQL, there is no answer. A request whose
// session is here is always delivered, and one that no node can know costs nothing. Any other one counts as wrong until
// another node has found its session: other nodes are asked about at most WrongCancels of an address at once, and as
// many wrong ones a second. The rest waits, and its places may be taken.
func (c *Client) cancelRequest(ctx context.Context, body []byte) {
	s := c.srv
	ctx, cancel := context.WithTimeout(ctx, CancelTime)
	defer cancel()
	key, elsewhere := s.Cancel(ctx, body)
	if !elsewhere {
		return
	}
	c.waits() // its slot may be taken from now on
	counted, turn := s.wrong.Await(ctx, c.from.Key, s.Limits.WrongCancels, c.slot.Taken())
	if !turn {
		s.Counts.Reject("cancel limit")
		return
	}
	select {
	case s.forwards <- struct{}{}:
		defer func() { <-s.forwards }()
	case <-ctx.Done():
		s.Counts.Reject("cancel limit")
		return
	case <-c.slot.Taken():
		s.Counts.Reject("cancel limit")
		return
	}
	if err := s.ForwardCancel(ctx, key.Node(), key); err != nil {
		s.Counts.Reject("wrong cancel")
		if s.Failures.MayLog(c.from) {
			s.Log.Info("no other node knows the session of a cancel request", "client", c.from.Host, "error", err)
		}
		return
	}
	s.wrong.TakeBack(c.from.Key, counted)
}
