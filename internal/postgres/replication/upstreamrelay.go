package replication

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/rawconn"
)

// open dials the source and introduces this node.
func (u *Upstream) open(ctx context.Context, kind string, src *Source) (net.Conn, error) {
	hello := u.cfg.Hello()
	if hello.Epoch > src.Epoch {
		return nil, fmt.Errorf("this node is in epoch %d, the source in epoch %d", hello.Epoch, src.Epoch)
	}
	hello.Kind, hello.Epoch = kind, src.Epoch
	dctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	remote, err := src.Dial(dctx)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", src.Replica, err)
	}
	answer, err := Open(ctx, remote, hello)
	if err == nil && answer.Epoch != src.Epoch {
		answer.OK, answer.Code = false, CodeEpoch
		answer.Message = fmt.Sprintf("asked for epoch %d, answered by epoch %d", src.Epoch, answer.Epoch)
		err = &RefusedError{answer}
	}
	var refused *RefusedError
	if kind == KindWAL && (err == nil || errors.As(err, &refused)) {
		u.noteAnswer(src, answer)
	}
	if err != nil {
		_ = remote.Close()
		return nil, err
	}
	return remote, nil
}

func (u *Upstream) noteAnswer(src *Source, a Answer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	old := u.status.Answer
	u.status.Answer, u.status.AnswerFrom, u.status.AnswerEpoch, u.status.AnswerAt = a, src.Replica, src.Epoch, boottime.Now()
	if !a.OK {
		u.status.Err = (&RefusedError{a}).Error()
	}
	if !a.OK && (old.OK || old.Code != a.Code || old.Message != a.Message) {
		u.log.Warn("source refuses", "source", src.Replica, "epoch", src.Epoch, "code", a.Code, "reason", a.Message)
	}
}

// relay forwards bytes between c and the source until either side ends or ctx is done. All that the source has sent
// reaches the client before its connection is closed.
func (u *Upstream) relay(ctx context.Context, c *localConn, remote net.Conn) error {
	if c.kind == KindWAL {
		n, err := rawconn.Take(c.Conn)
		if err != nil {
			return fmt.Errorf("local: %w", err)
		}
		c = &localConn{Conn: n, kind: c.kind, greeting: c.greeting, early: c.early}
	}
	var once sync.Once
	var cause error
	end := func(err error) {
		once.Do(func() {
			cause = err
			_ = c.Close()
			_ = remote.Close()
		})
	}
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	var wg sync.WaitGroup
	wg.Go(func() { end(u.fromSource(c, remote)) })
	wg.Go(func() { end(u.toSource(c, remote)) })
	wg.Wait()
	stop()
	end(nil)
	return cause
}

func (u *Upstream) fromSource(c *localConn, remote net.Conn) error {
	if len(c.greeting) > 0 {
		if _, err := c.Write(c.greeting); err != nil {
			return fmt.Errorf("local: %w", err)
		}
	}
	var dead atomic.Bool
	watch := time.AfterFunc(u.cfg.DeadAfter, func() {
		dead.Store(true)
		_ = remote.Close()
	})
	defer watch.Stop()
	if c.kind != KindWAL {
		watch.Stop()
	}
	err := receive(remote, downBuffer, func(b []byte) error {
		u.received.Add(uint64(len(b)))
		if c.kind == KindWAL {
			u.lastRead.Store(int64(boottime.Now()))
			watch.Stop() // while the walreceiver is waited for
			defer watch.Reset(u.cfg.DeadAfter)
		}
		if _, err := c.Write(b); err != nil {
			return fmt.Errorf("local: %w", err)
		}
		return nil
	})
	if dead.Load() {
		err = errors.Join(fmt.Errorf("no word for %v", u.cfg.DeadAfter), err)
	}
	return fmt.Errorf("source: %w", err)
}

func (u *Upstream) toSource(c *localConn, remote net.Conn) error {
	if len(c.early) > 0 {
		if _, err := remote.Write(c.early); err != nil {
			return fmt.Errorf("source: %w", err)
		}
	}
	buf := make([]byte, 16<<10)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			u.sent.Add(uint64(n))
			if _, werr := remote.Write(buf[:n]); werr != nil {
				return fmt.Errorf("source: %w", werr)
			}
		}
		if err != nil {
			return fmt.Errorf("local: %w", err)
		}
	}
}
