package resume

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/listener/replay"
)

// TriedError means that a transaction was executed again, perhaps in part, and the session cannot go on in it.
type TriedError struct{ Why string }

func (e TriedError) Error() string { return "its transaction could not be executed again: " + e.Why }

// ErrLost is the error of a transaction whose new server is lost, too.
var ErrLost = TriedError{"the new primary was lost, too"}

// errLate is the error of a transaction whose execution has not ended in time.
var errLate = TriedError{"it was not executed in time"}

// Execute executes the transaction of a log until ctx ends, and compares the answers. Every error is a TriedError. The
// request that was not answered is left to be forwarded. run has what is for the client beside the answers; extensions
// are those of the database.
func (s Server) Execute(ctx context.Context, log *replay.Log, extensions []string) (run *replay.Run, err error) {
	run = log.Run()
	if why := replay.Outside(extensions); why != "" {
		return run, TriedError{why}
	}
	unhook := context.AfterFunc(ctx, func() { _ = s.Conn.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	for request := run.Next(); request != nil; request = run.Next() {
		same, err := s.executeOne(run, request)
		switch {
		case err != nil && ctx.Err() != nil:
			return run, errLate
		case err != nil:
			return run, ErrLost
		case !same:
			return run, TriedError{replay.Differs}
		}
	}
	if !unhook() {
		return run, errLate
	}
	return run, nil
}

// executeOne executes a request, and reports whether its answer is the same.
func (s Server) executeOne(run *replay.Run, request []byte) (same bool, err error) {
	var sending sync.WaitGroup
	sending.Go(func() { _, _ = s.Conn.Write(request) }) // without all of it there is no answer
	defer sending.Wait()
	for {
		_, err := s.In.Peek(1)
		verdict := replay.Different
		if err == nil {
			var used int
			arrived, _ := s.In.Peek(s.In.Buffered())
			used, verdict = run.Feed(arrived)
			_, _ = s.In.Discard(used)
		}
		switch verdict {
		case replay.Pending:
		case replay.Same:
			return true, nil
		case replay.Different:
			_ = s.Conn.SetDeadline(time.Unix(1, 0)) // it ends: it may still be sending
			if err != nil {
				err = fmt.Errorf("execute a request again: %w", err)
			}
			return false, err
		}
	}
}
