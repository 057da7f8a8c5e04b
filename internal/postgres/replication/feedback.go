package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/lib/retry"
)

// passUp writes a message of the walreceiver to the walsender, or keeps it while feedback is held.
func (st *stream) passUp(f frame) error {
	if err := st.toServer.take(context.Background(), st.closing); err != nil {
		return err
	}
	defer st.toServer.give()
	feedback := f.isStatus() || f.isHotStandby()
	if feedback && st.holding.Load() {
		st.hold(f)
		return nil
	}
	switch f.kind {
	case 'c':
		// A walsender ends with an error if a status update follows the end of the streaming.
		st.held, st.heldXmin, st.copyDone = nil, nil, true
	case 'Q':
		st.copyDone = false
	}
	if feedback {
		if err := st.release(); err != nil {
			return err
		}
	}
	if f.isStatus() {
		return st.writeStatus(f.head, nil)
	}
	return st.writeServer(f.head)
}

// hold keeps the newest feedback of each kind. Positions are cumulative, so older ones are not needed and memory is
// bounded. The caller holds toServer.
func (st *stream) hold(f frame) {
	if !f.isStatus() {
		st.heldXmin = append(st.heldXmin[:0], f.head...)
		return
	}
	wanted := f.replyWanted() || st.held != nil && st.held[statusLen-1] != 0
	st.held = append(st.held[:0], f.head...)
	if wanted {
		st.held[statusLen-1] = 1
	}
}

// release forwards what was held. The caller holds toServer.
func (st *stream) release() error {
	xmin, held := st.heldXmin, st.held
	st.heldXmin, st.held = nil, nil
	if xmin != nil {
		if err := st.writeServer(xmin); err != nil {
			return err
		}
	}
	if held != nil {
		return st.writeStatus(held, nil)
	}
	return nil
}

// writeStatus sends a status update to the walsender and records the reply it owes for it. The caller holds toServer.
func (st *stream) writeStatus(b []byte, reply chan bool) error {
	f := frame{kind: b[0], head: b, size: len(b)}
	if f.replyWanted() {
		st.mu.Lock()
		st.owed = append(st.owed, reply)
		n := len(st.owed)
		st.mu.Unlock()
		if n > maxOwed {
			return fmt.Errorf("%d replies asked for without an answer", n)
		}
	}
	st.passed = f.status()
	return st.writeServer(b)
}

func (st *stream) writeServer(b []byte) error {
	_ = st.server.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := st.server.Write(b); err != nil {
		return serverFailed(err)
	}
	return nil
}

// settle returns when no feedback is on its way that was when holding changed. It forwards what was held if feedback is
// held no longer.
func (st *stream) settle() {
	if st.toServer.take(context.Background(), st.closing) != nil {
		return
	}
	defer st.toServer.give()
	if st.holding.Load() {
		return
	}
	if err := st.release(); err != nil {
		st.close(err)
	}
}

// prove returns when the walsender has answered two status updates, one after the other. A walsender re-reads its
// settings at the top of its loop and then reads all waiting messages. A message may arrive during that reading, so the
// first reply proves nothing. But the reply is sent after the reading, so the second update is read in a later round,
// after a re-read of every setting that was signalled before the call.
//
// A walreceiver leaves streaming mode for a moment at the end of a timeline. The proof begins anew in the streaming
// after that, if it comes within switchTimeout.
func (st *stream) prove(ctx context.Context) error {
	select {
	case <-st.started:
	case <-st.closing:
		return errEnded
	case <-ctx.Done():
		return ctx.Err()
	}
	brief, cancel := context.WithTimeout(ctx, switchTimeout)
	defer cancel()
	for {
		err := st.askTwice(ctx)
		if !errors.Is(err, errNotStreaming) {
			return err
		}
		if retry.Sleep(brief, switchPoll) != nil {
			return err
		}
	}
}

// askTwice asks for two replies, one after the other, within one streaming.
func (st *stream) askTwice(ctx context.Context) error {
	for range 2 {
		reply, err := st.ask(ctx)
		if err != nil {
			return err
		}
		select {
		case answered := <-reply:
			if !answered {
				return errNotStreaming
			}
		case <-st.closing:
			return errEnded
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	st.mu.Lock()
	st.proven++
	st.mu.Unlock()
	return nil
}

// ask adds a status update with unchanged positions to the stream, and returns the channel of its reply.
func (st *stream) ask(ctx context.Context) (<-chan bool, error) {
	if err := st.toServer.take(ctx, st.closing); err != nil {
		return nil, err
	}
	defer st.toServer.give()
	st.mu.Lock()
	streaming := st.streaming
	st.mu.Unlock()
	if !streaming || st.copyDone {
		return nil, errNotStreaming
	}
	reply := make(chan bool, 1)
	if err := st.writeStatus(statusUpdate(st.passed), reply); err != nil {
		st.close(err)
		return nil, err
	}
	return reply, nil
}
