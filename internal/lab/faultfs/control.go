package faultfs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// askTimeout bounds one question to the server of a disk, which answers at once whatever the disk does.
const askTimeout = 2 * time.Second

// lossTimeout bounds a loss of power, which looks at every file of the disk.
const lossTimeout = time.Minute

// request is one line to the server: the fault to put in force, a loss of power, or none to ask only.
type request struct {
	Set  *Fault `json:"set,omitempty"`
	Lose *Loss  `json:"lose,omitempty"`
}

// reply is one line back.
type reply struct {
	State
	Lost  *Lost  `json:"lost,omitempty"`
	Error string `json:"error,omitempty"`
}

// Ask asks the server at the socket how its disk is.
func Ask(ctx context.Context, socket string) (State, error) { return call(ctx, socket, request{}) }

// Set puts a fault in force; the zero Fault heals the disk.
func Set(ctx context.Context, socket string, f Fault) (State, error) {
	if err := f.Check(); err != nil {
		return State{}, err
	}
	return call(ctx, socket, request{Set: &f})
}

func call(ctx context.Context, socket string, r request) (State, error) {
	a, err := callWithin(ctx, askTimeout, socket, r)
	return a.State, err
}

func callWithin(ctx context.Context, limit time.Duration, socket string, r request) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var c net.Conn
	err := short(socket, func(path string) (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, "unix", path)
		return err
	})
	if err != nil {
		return reply{}, fmt.Errorf("reach the disk's server: %w", err)
	}
	defer func() { _ = c.Close() }()
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline) // a socket takes one
	if err := json.NewEncoder(c).Encode(r); err != nil {
		return reply{}, fmt.Errorf("ask the disk's server: %w", err)
	}
	var a reply
	if err := json.NewDecoder(io.LimitReader(c, 4096)).Decode(&a); err != nil {
		return reply{}, fmt.Errorf("ask the disk's server: %w", err)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// short calls do with a name of the socket that is short whatever its directory is: names of sockets have at most 107
// bytes.
func short(socket string, do func(path string) error) error {
	d, err := os.Open(filepath.Dir(socket))
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return do("/proc/self/fd/" + strconv.Itoa(int(d.Fd())) + "/" + filepath.Base(socket))
}

// listen takes the socket over from a server that is dead; only this user may connect.
func listen(socket string) (net.Listener, error) {
	if _, err := Ask(context.Background(), socket); err == nil {
		return nil, fmt.Errorf("another server answers at %s", socket)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var l net.Listener
	err := short(socket, func(path string) (err error) {
		l, err = (&net.ListenConfig{}).Listen(context.Background(), "unix", path)
		return err
	})
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the name was good only while the directory was open
	return l, os.Chmod(socket, 0o600)
}

// answer serves one question at a time until the listener is closed.
func answer(l net.Listener, g *gate, j *journal) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_ = c.SetDeadline(time.Now().Add(askTimeout)) // a socket takes one
		var r request
		line, err := bufio.NewReader(io.LimitReader(c, 4096)).ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &r)
		}
		if err == nil && r.Set != nil {
			if err = r.Set.Check(); err == nil {
				g.set(*r.Set)
			}
		}
		a := reply{State: g.state(os.Getpid())}
		if err == nil && r.Lose != nil {
			_ = c.SetDeadline(time.Now().Add(lossTimeout)) // a socket takes one
			g.set(Fault{})                                 // what waits for the disk gets an error
			var lost Lost
			lost, err = j.lose(*r.Lose)
			a.Lost = &lost
		}
		if err != nil {
			a.Error = err.Error()
		}
		_ = json.NewEncoder(c).Encode(a) // the client has closed the connection when this fails
		_ = c.Close()
	}
}
