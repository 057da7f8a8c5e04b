package fingerprint

import (
	"context"
	"encoding/binary"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/eventloop"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/uring"
)

// Statement is the prepared statement of the session for fingerprints.
const Statement = "coterie_mark"

// Login is the server's description of a role and a database.
type Login struct {
	Text        string // differs if a new session would differ: role, memberships, database, settings, server
	Exclusive   bool   // each session needs a backend of its own: superusers, replication roles, databases with a login trigger
	NotReusable bool   // a backend cannot be reset: its role or database sets the role of the session
}

// Config is what a Conn needs.
type Config struct {
	Loop *eventloop.Loop // on which it asks
	// Session opens a session of the local server on which Statement is prepared; the context bounds that.
	Session   func(context.Context) (net.Conn, error)
	Handshake time.Duration        // bounds the opening of a session
	Patience  func() time.Duration // bounds an answer
	Life      context.Context      // no session is opened after its end
	// Background runs a function in a goroutine that is waited for at the end. Ask is called where the caller is
	// counted.
	Background func(what string, f func())
	Panicked   func(value any) // is told of a panic of a caller's function
	Log        *slog.Logger
}

// reopenAfter is the pause after the session could not be opened.
const reopenAfter = time.Second

// maxFingerprint bounds an answer in bytes: its text grows with the memberships of a role.
const maxFingerprint = 64 << 10

// Conn asks the local server for fingerprints of logins, on a session of its own. A query and its answer take two turns
// of its loop and wake no goroutine. Many queries may be outstanding; the server answers them in order. Fingerprints of
// two sessions may differ although nothing has changed, since each process of PostgreSQL has its own time of the last
// reload. So there should be one connection, which goroutines use, too.
type Conn struct {
	cfg      Config
	fd       int // -1: no session is open
	waiting  []query
	in       []byte // an incomplete message
	answer   Login  // the answer to waiting[0]
	answered bool   // answer is set
	timed    bool   // a timer bounds the oldest query

	mu      sync.Mutex
	opened  int           // guarded by mu: a session that was opened and not used yet; -1: none
	opening bool          // guarded by mu
	after   time.Duration // guarded by mu: no session is opened before this instant of CLOCK_BOOTTIME
}

// query was sent and is not answered.
type query struct {
	at     time.Duration // CLOCK_BOOTTIME
	answer func(m Login, ok bool)
}

// New returns a connection that opens its session when it is asked first.
func New(cfg Config) *Conn { return &Conn{cfg: cfg, fd: -1, opened: -1} }

// Ask queries the fingerprint of a role in a database. It calls answer on the loop later, or reports false and never
// calls it.
func (a *Conn) Ask(user, database string, answer func(m Login, ok bool)) bool {
	if a.fd < 0 && !a.begin() {
		return false
	}
	text := queryOf(user, database)
	if !a.cfg.Loop.Batch.Queue(a, a.fd, text) {
		if a.cfg.Loop.Batch.Holds(a) {
			return false // the batch is full, and answers come in the order of the queries
		}
		if n, err := socket.Write(a.fd, text); err != nil || n < len(text) {
			a.lost()
			return false
		}
	}
	a.waiting = append(a.waiting, query{boottime.Now(), answer})
	a.watch()
	return true
}

// queryOf returns the messages that execute the statement.
func queryOf(user, database string) []byte {
	b := append(pgwire.AppendCString([]byte{0}, Statement), 0, 0, 0, 2) // unnamed portal, no formats: text
	for _, v := range []string{user, database} {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
	}
	out := pgwire.AppendMessage(nil, 'B', append(b, 0, 0))
	out = pgwire.AppendMessage(out, 'E', []byte{0, 0, 0, 0, 0})
	return pgwire.AppendMessage(out, 'S', nil)
}

// begin takes up a session that was opened, or has one opened. It reports whether there is one.
func (a *Conn) begin() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fd, a.opened = a.opened, -1; a.fd >= 0 {
		err := a.cfg.Loop.Watch(a.fd, a, unix.EPOLL_CTL_ADD, unix.EPOLLIN)
		if err != nil {
			a.cfg.Log.Warn("watch the session for login fingerprints", "error", err)
			a.lost()
		}
		return err == nil
	}
	if !a.opening && boottime.Now() >= a.after && a.cfg.Life.Err() == nil {
		a.opening = true
		a.cfg.Background("opening the session for login fingerprints", a.open)
	}
	return false
}

// open opens a session.
func (a *Conn) open() {
	ctx, cancel := context.WithTimeout(a.cfg.Life, a.cfg.Handshake)
	defer cancel()
	var conn net.Conn
	var err error
	fd := -1
	if conn, err = a.cfg.Session(ctx); err == nil {
		fd, err = socket.Duplicate(conn)
		_ = conn.Close()
	}
	if err != nil {
		a.cfg.Log.Info("event loops complete no logins: the session for login fingerprints could not be opened", "error", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.opening, a.opened, a.after = false, fd, boottime.Now()
	if err != nil {
		a.after += reopenAfter
	}
}

// rescue lets a panic end the session for fingerprints, and nothing else.
func (a *Conn) rescue() {
	if r := recover(); r != nil {
		a.cfg.Panicked(r)
		a.lost()
	}
}

// Ready reads answers.
func (a *Conn) Ready(uint32) {
	defer a.rescue()
	n, err := socket.Receive(a.fd, a.cfg.Loop.Buf)
	if socket.WouldWait(err) {
		return
	}
	if n == 0 || err != nil {
		a.lost()
		return
	}
	a.in = append(a.in, a.cfg.Loop.Buf[:n]...)
	for len(a.in) >= 5 {
		size := int(binary.BigEndian.Uint32(a.in[1:])) + 1
		if size < 5 || size > maxFingerprint {
			a.lost()
			return
		}
		if len(a.in) < size {
			return
		}
		if !a.take(a.in[0], a.in[5:size]) {
			a.lost()
			return
		}
		a.in = append(a.in[:0], a.in[size:]...)
	}
}

// take handles a message. It reports false if the message does not belong in an answer.
func (a *Conn) take(typ byte, body []byte) bool {
	switch typ {
	case 'D':
		a.answer, a.answered = parse(body)
		return a.answered
	case 'C':
		if !a.answered { // no such role or database, as in package postgres
			a.answer, a.answered = Login{Exclusive: true}, true
		}
	case 'Z':
		if len(a.waiting) == 0 {
			return false
		}
		q, m, said := a.waiting[0], a.answer, a.answered
		a.waiting = slices.Delete(a.waiting, 0, 1)
		a.answer, a.answered = Login{}, false
		q.answer(m, said)
	case '2', 'E', 'N', 'S', 'A':
	default:
		return false
	}
	return true
}

// parse reads the row of an answer.
func parse(b []byte) (m Login, ok bool) {
	if len(b) < 2 || binary.BigEndian.Uint16(b) != 3 {
		return m, false
	}
	var column [3]string
	b = b[2:]
	for i := range column {
		if len(b) < 4 {
			return m, false
		}
		n := int(int32(binary.BigEndian.Uint32(b)))
		if b = b[4:]; n < 0 || n > len(b) {
			return m, false
		}
		column[i], b = string(b[:n]), b[n:]
	}
	return Login{Text: column[0], Exclusive: column[1] != "f", NotReusable: column[2] != "f"}, len(b) == 0
}

// watch starts a timer that bounds the oldest query.
func (a *Conn) watch() {
	if a.timed || len(a.waiting) == 0 {
		return
	}
	a.timed = true
	patience := a.cfg.Patience()
	left := max(time.Millisecond, a.waiting[0].at+patience-boottime.Now())
	time.AfterFunc(left, func() {
		a.cfg.Loop.Post(func() {
			a.timed = false
			if len(a.waiting) > 0 && boottime.Now() >= a.waiting[0].at+patience {
				a.lost()
				return
			}
			a.watch()
		})
	})
}

// Wrote closes the session if a query was not written whole.
func (a *Conn) Wrote(w *uring.Write) {
	defer a.rescue()
	if w.FD == a.fd && (w.Err != nil || w.N < len(w.B)) {
		a.lost()
	}
}

// lost closes the session, if there is one. Outstanding queries are answered with ok false.
func (a *Conn) lost() {
	if a.fd < 0 {
		return
	}
	a.cfg.Loop.Batch.Remove(a)
	a.cfg.Loop.Forget(a.fd)
	_ = unix.Close(a.fd)
	list := a.waiting
	a.fd, a.waiting, a.in, a.answer, a.answered = -1, nil, nil, Login{}, false
	for _, q := range list {
		q.answer(Login{}, false)
	}
}

// Close closes the session, with the loop.
func (a *Conn) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, fd := range []int{a.fd, a.opened} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	a.fd, a.opened = -1, -1
}
