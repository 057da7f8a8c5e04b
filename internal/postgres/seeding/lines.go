package seeding

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// The pauses and the patience after a lost connection.
const (
	retryFirst = 50 * time.Millisecond
	retryMost  = 3 * time.Second
	pingEvery  = 5 * time.Second
	dialLimit  = 15 * time.Second
	// sourceGone is the time after which an attempt with a failing secondary is given up: unlike a primary, a secondary
	// is not replaced.
	sourceGone = 30 * time.Second
)

// retryLost repeats f, with growing pauses, while it fails because of a connection and not because of a refusal.
func (s *seeder) retryLost(ctx context.Context, f func() error) error {
	pause, good := retryFirst, time.Now()
	for {
		began, done := time.Now(), s.watch.Done()
		err := f()
		var r *wire.RefusedError
		var local *localError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &local):
			return err
		case errors.As(err, &r) && r.Code != wire.CodeBusy:
			return err
		}
		if s.watch.Done() != done {
			good = time.Now()
		}
		if s.o.Anchor != nil && r == nil && time.Since(good) > sourceGone {
			return fmt.Errorf("the source has not answered for %v: %w", sourceGone, err)
		}
		if r != nil { // the source is busy with others and answers so
			s.watch.Lost(r.Message)
		} else {
			s.watch.Cut(err.Error())
		}
		if time.Since(began) > retryMost || s.watch.Done() != done { // it served for a while
			pause = retryFirst
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		case <-t.C:
		}
		pause = min(2*pause, retryMost)
	}
}

// localError is a failure of this node, which another connection does not repair.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// dial opens a connection to the source, or to another node by means of how, and sends the hello.
func (s *seeder) dial(ctx context.Context, how func(context.Context) (net.Conn, error), h wire.Hello) (*wire.Conn, wire.Window, func(), error) {
	h.Version, h.Member, h.Epoch, h.Spread, h.Corrupt = wire.ProtocolVersion, s.o.Member, s.o.Epoch, s.o.Spread, s.o.Corrupt
	var info wire.Window
	dctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	conn, err := how(dctx)
	if err != nil {
		return nil, info, nil, fmt.Errorf("connect to the source: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	end := func() { stop(); _ = conn.Close() }
	f := wire.NewConn(conn)
	f.Count = s.watch.Wire
	if err := f.WriteJSON(wire.FrameHello, h); err != nil {
		end()
		return nil, info, nil, err
	}
	limit := wire.Silence
	if h.Window == "" {
		limit = wire.WindowTimeout
	}
	deadline := time.Now().Add(limit)
	for {
		kind, body, err := f.Read(wire.Silence)
		switch {
		case err != nil:
		case kind == wire.FramePing && time.Now().Before(deadline): // a checkpoint takes its time
			s.watch.Found()
			continue
		case kind == wire.FrameRefusal:
			err = wire.DecodeRefusal(body)
		case kind != wire.FrameWindow:
			err = fmt.Errorf("a frame %q in place of a window", kind)
		default:
			err = json.Unmarshal(body, &info)
		}
		if err != nil {
			end()
			return nil, info, nil, err
		}
		s.watch.Found()
		return f, info, end, nil
	}
}

// line is an open data connection, or the reason why it could not be opened.
type line struct {
	f   *wire.Conn
	end func()
	err error
}

// lines are data connections that are opened before the first question. Opening takes three round trips, in which the
// target is given the shape of the list.
type lines struct {
	open chan line
	all  sync.WaitGroup
	stop context.CancelFunc
}

// dialAhead opens n data connections of the window.
func (s *seeder) dialAhead(ctx context.Context, n int) *lines {
	ctx, stop := context.WithCancel(ctx)
	l := &lines{open: make(chan line, n), stop: stop}
	for range n {
		l.all.Go(func() { l.open <- s.line(ctx) })
	}
	return l
}

// line opens a data connection of the window.
func (s *seeder) line(ctx context.Context) line {
	f, _, end, err := s.dial(ctx, s.o.Dial, wire.Hello{Window: s.info.ID, Data: true, After: s.ctl.h.After})
	return line{f, end, err}
}

// take returns one of the connections, which the caller closes. It must not be called more often than there are
// connections.
func (l *lines) take(ctx context.Context) line {
	select {
	case one := <-l.open:
		return one
	case <-ctx.Done():
		return line{err: context.Cause(ctx)}
	}
}

// close ends the connections that were not taken.
func (l *lines) close() {
	l.stop()
	l.all.Wait()
	close(l.open)
	for one := range l.open {
		if one.err == nil {
			one.end()
		}
	}
}
