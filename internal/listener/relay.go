package listener

import (
	"errors"
	"io"
	"runtime/debug"
	"time"
)

// relayBuffer is the size of the one buffer of each direction: what a session holds at most.
const relayBuffer = 16 << 10

// linger is how long a client may take to read the last error while what it still sends is thrown away.
const linger = 250 * time.Millisecond

// relay carries bytes both ways until either side ends, and returns when both directions have.
func (x *session) relay() {
	defer x.close()
	up := make(chan struct{})
	go func() {
		defer close(up)
		defer x.rescue("upstream")
		x.upstream()
	}()
	func() {
		defer x.rescue("downstream")
		x.downstream()
	}()
	_ = x.backend.Close()
	if x.ended.Load() != nil || !x.terminated.Load() {
		// Unread bytes would make the kernel reset the connection and lose the last error: upstream reads them away.
		halfClose(x.client)
		_ = x.raw.SetReadDeadline(time.Now().Add(linger))
	} else {
		_ = x.raw.Close()
	}
	<-up
}

// rescue keeps a panic of one session from the others.
func (x *session) rescue(direction string) {
	if r := recover(); r != nil {
		x.srv.log.Error("session panicked", "session", x.id, "direction", direction, "panic", r, "stack", string(debug.Stack()))
		x.end(ending{reason: "panic", why: "internal error of the listener"})
		_ = x.backend.Close()
		_ = x.raw.Close()
	}
}

// downstream carries answers to the client. It is the only writer to the client.
func (x *session) downstream() {
	var passed framer // boundaries of what the client has received
	buf := make([]byte, relayBuffer)
	for {
		n, err := x.in.Read(buf)
		if x.ended.Load() != nil {
			n = 0 // discarded: it may be of a primary that is none any more
		}
		if n > 0 {
			if bad := passed.scan(buf[:n], x.observeAnswer); bad != nil {
				x.srv.log.Error("PostgreSQL sent what is no message", "session", x.id, "error", bad)
				x.end(ending{reason: "postgresql protocol", why: "protocol error"})
				return
			}
			if _, werr := x.client.Write(buf[:n]); werr != nil {
				return
			}
			x.bytesOut.Add(uint64(n))
		}
		if err != nil || x.ended.Load() != nil {
			x.sayWhy(err, passed.atBoundary())
			return
		}
	}
}

// sayWhy ends the client's side with an error where PostgreSQL has not done so itself.
func (x *session) sayWhy(err error, atBoundary bool) {
	why := "the connection to PostgreSQL was lost"
	switch e := x.ended.Load(); {
	case e != nil:
		why = e.why
	case errors.Is(err, errGate):
		why = "its answers could not be confirmed in time"
		x.end(ending{reason: "gate", why: why})
	case x.terminated.Load() || x.fatalSent.Load():
		return
	default:
		x.end(ending{reason: "backend lost", why: why})
	}
	x.srv.log.Info("session cut", "session", x.id, "replica", x.replica, "user", x.user, "reason", why, "in_doubt", x.inDoubt())
	if !atBoundary || x.fatalSent.Load() || x.terminated.Load() {
		return
	}
	_ = x.raw.SetWriteDeadline(time.Now().Add(x.srv.cfg.Limits.ShutdownMessage))
	_, _ = x.client.Write(x.farewell(why).encode())
}

// upstream carries requests to PostgreSQL.
func (x *session) upstream() {
	var seen framer
	buf := make([]byte, relayBuffer)
	for {
		n, err := x.client.Read(buf)
		if n > 0 && x.ended.Load() == nil {
			x.bytesIn.Add(uint64(n))
			if bad := seen.scan(buf[:n], x.observeRequest); bad != nil {
				x.end(ending{"protocol", "invalid message length", true})
			} else if _, werr := x.backend.Write(buf[:n]); werr != nil && x.ended.Load() == nil {
				// downstream reads what PostgreSQL still had to say, then its end
				_, _ = io.Copy(io.Discard, x.client)
				return
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) || x.ended.Load() == nil {
				x.terminated.Store(true) // nobody reads an error any more
				halfClose(x.backend)
			}
			return
		}
	}
}

// observeRequest follows what the client has asked.
func (x *session) observeRequest(typ byte, _ []byte) {
	switch typ {
	case 'Q', 'F':
		x.bySync.Store(false)
		x.owed.Add(1)
	case 'S':
		x.bySync.Store(true)
		x.unsynced.Store(false)
		x.owed.Add(1)
	case 'P', 'B', 'E', 'D', 'C', 'H':
		x.unsynced.Store(true)
	case 'c', 'f':
		if x.bySync.Load() {
			x.owed.Store(0) // PostgreSQL ignored that Sync: it came during COPY, and another one follows
			x.unsynced.Store(true)
		}
	case 'X':
		x.terminated.Store(true)
	}
}

// observeAnswer follows what PostgreSQL has answered.
func (x *session) observeAnswer(typ byte, body []byte) {
	switch typ {
	case 'Z':
		if len(body) > 0 {
			x.status.Store(uint32(body[0]))
		}
		for {
			n := x.owed.Load()
			if n <= 0 || x.owed.CompareAndSwap(n, n-1) {
				return
			}
		}
	case 'E':
		if v := errorField(body, 'V'); v == "FATAL" || v == "PANIC" {
			x.fatalSent.Store(true)
		}
	}
}
