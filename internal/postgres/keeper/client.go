package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// quickly bounds requests that the keeper answers from memory, when the caller's context has no earlier deadline;
// slowly bounds those that wait for processes to end or for the disk.
const (
	quickly = 5 * time.Second
	slowly  = 60 * time.Second
)

// Client is the agent's connection to its keeper. Its methods may be called from several goroutines at once.
type Client struct {
	nc    *net.UnixConn
	exits chan Exit
	done  chan struct{} // closed when the reader has ended

	writing sync.Mutex // one line at a time

	mu      sync.Mutex
	next    uint64
	pending map[uint64]chan message
	ended   bool
}

// Dial connects to the keeper's socket and sends HELLO. incarnation names this run of the agent. The keeper serves one
// agent, the last to connect, and ends the connection of the previous one, which fences if that one was armed and not
// detached. A caller with an empty incarnation is an observer: it displaces no agent and may only call Status.
func Dial(ctx context.Context, socket, incarnation string) (*Client, State, error) {
	ctx, cancel := context.WithTimeout(ctx, quickly)
	defer cancel()
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, State{}, fmt.Errorf("connect to the keeper: %w", err)
	}
	c := &Client{
		nc: nc.(*net.UnixConn), exits: make(chan Exit, 64), done: make(chan struct{}),
		pending: make(map[uint64]chan message),
	}
	go c.read()
	m, err := c.call(ctx, quickly, request{Op: opHello, Version: Version, Incarnation: incarnation})
	if err == nil && m.State == nil {
		err = fmt.Errorf("%w: no state in its answer", ErrRefused)
	}
	if err != nil {
		_ = c.Close()
		return nil, State{}, fmt.Errorf("greet the keeper: %w", err)
	}
	return c, *m.State, nil
}

// Start starts PostgreSQL, as a standby or, while armed for req.Epoch, as a primary. It returns once the postmaster is
// forked, not when it accepts connections. A start is refused while any process of the last server is alive.
func (c *Client) Start(ctx context.Context, req StartRequest) (pid int, err error) {
	m, err := c.call(ctx, slowly, request{Op: opStart, Start: &req})
	return m.PID, wrap("start PostgreSQL", err)
}

// Arm makes the keeper fence when deadline (absolute, BOOTTIME) has passed, and at once when this connection ends.
func (c *Client) Arm(ctx context.Context, epoch ag.Epoch, deadline time.Duration) error {
	_, err := c.call(ctx, quickly, request{Op: opArm, Epoch: epoch, Deadline: deadline})
	return wrap("arm the keeper", err)
}

// Extend moves the deadline forward. It also ends a Detach, whose until remains in force until then.
func (c *Client) Extend(ctx context.Context, epoch ag.Epoch, deadline time.Duration) error {
	_, err := c.call(ctx, quickly, request{Op: opExtend, Epoch: epoch, Deadline: deadline})
	return wrap("extend the keeper's deadline", err)
}

// Disarm ends the armed state. If a server runs and is not in recovery, it is refused with ErrLeading.
func (c *Client) Disarm(ctx context.Context, epoch ag.Epoch) error {
	_, err := c.call(ctx, quickly, request{Op: opDisarm, Epoch: epoch})
	return wrap("disarm the keeper", err)
}

// Fence ends the server as fast as possible, and returns when no process is alive and the fence is on disk.
func (c *Client) Fence(ctx context.Context, reason string) error {
	_, err := c.call(ctx, slowly, request{Op: opFence, Reason: reason})
	return wrap("fence", err)
}

// Stop stops the server; mode is "smart", "fast" or "immediate". After budget, processes that are still alive are ended
// as by Fence. clean reports whether the server wrote its shutdown checkpoint or, if none runs, whether the last one
// did.
func (c *Client) Stop(ctx context.Context, mode string, budget time.Duration) (clean bool, err error) {
	m, err := c.call(ctx, max(budget, 0)+slowly, request{Op: opStop, Mode: mode, Budget: budget})
	return m.Clean, wrap("stop PostgreSQL", err)
}

// Detach announces that this connection will end and that a new one will Extend before until, which may not lie beyond
// the deadline. The keeper fences at until instead of at the end of the connection.
func (c *Client) Detach(ctx context.Context, epoch ag.Epoch, until time.Duration) error {
	_, err := c.call(ctx, quickly, request{Op: opDetach, Epoch: epoch, Deadline: until})
	return wrap("detach from the keeper", err)
}

// Status returns the keeper's state.
func (c *Client) Status(ctx context.Context) (State, error) {
	m, err := c.call(ctx, quickly, request{Op: opStatus})
	if err != nil || m.State == nil {
		return State{}, wrap("ask the keeper", err)
	}
	return *m.State, nil
}

// Log returns the log of the servers that the keeper starts: a file in memory that only grows. The caller closes it. A
// keeper that is older refuses.
func (c *Client) Log(ctx context.Context) (*os.File, error) {
	m, err := c.call(ctx, quickly, request{Op: opLog})
	if err == nil && m.file == nil {
		err = refuse(ErrRefused, "LOG: no descriptor came with the answer")
	}
	return m.file, wrap("ask the keeper for the server's log", err)
}

// Shutdown ends the keeper; only with no server running.
func (c *Client) Shutdown(ctx context.Context) error {
	_, err := c.call(ctx, quickly, request{Op: opShutdown})
	return wrap("shut the keeper down", err)
}

// Exits receives each end of a postmaster, after all processes that it forked have been killed. It is closed when the
// connection ends. A receiver that is 64 values behind misses some, which State.ExitCount shows.
func (c *Client) Exits() <-chan Exit { return c.exits }

// Close ends the connection. While armed and not detached, that fences.
func (c *Client) Close() error {
	err := c.nc.Close()
	<-c.done
	return err
}

// read delivers replies and exits until the connection ends.
func (c *Client) read() {
	files := &fileReader{nc: c.nc}
	defer files.close()
	in := newLines(files)
	for {
		var m message
		if err := in.next(&m); err != nil {
			break
		}
		if m.Exit != nil {
			select {
			case c.exits <- *m.Exit:
			default:
			}
			continue
		}
		if m.Log {
			m.file = files.take()
		}
		c.mu.Lock()
		reply := c.pending[m.ID]
		delete(c.pending, m.ID)
		c.mu.Unlock()
		switch {
		case reply != nil:
			reply <- m
		case m.file != nil:
			_ = m.file.Close() // the caller has given up
		}
	}
	_ = c.nc.Close()
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	close(c.exits)
	close(c.done)
}

// call sends a request and waits for its reply.
func (c *Client) call(ctx context.Context, limit time.Duration, r request) (message, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	reply := make(chan message, 1)
	c.mu.Lock()
	if c.ended {
		c.mu.Unlock()
		return message{}, ErrClosed
	}
	c.next++
	r.ID = c.next
	c.pending[r.ID] = reply
	c.mu.Unlock()
	if err := c.send(ctx, r); err != nil {
		c.forget(r.ID)
		return message{}, err
	}
	select {
	case m := <-reply:
		return m, m.err()
	case <-ctx.Done():
		c.forget(r.ID)
		return message{}, ctx.Err()
	case <-c.done:
	}
	select {
	case m := <-reply: // it arrived just before the end
		return m, m.err()
	default:
		return message{}, ErrClosed
	}
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, id)
}

func (c *Client) send(ctx context.Context, r request) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(b) >= maxLine {
		return fmt.Errorf("%w: the request is longer than %d bytes", ErrRefused, maxLine)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := ctx.Err(); err != nil { // the caller's deadline passed before the request was sent, which does not mean that the keeper has ended
		return err
	}
	deadline, _ := ctx.Deadline()
	if err := c.nc.SetWriteDeadline(deadline); err != nil {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	n, err := c.nc.Write(append(b, '\n'))
	switch {
	case err == nil:
		return nil
	case n == 0 && errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("send to the keeper: %w", err)
	}
	_ = c.nc.Close() // a line may be half written
	return fmt.Errorf("%w: %w", ErrClosed, err)
}

func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}
