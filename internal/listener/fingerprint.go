package listener

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/uring"
)

// FingerprintStatement is the prepared statement of the session that Config.FingerprintSession opens.
const FingerprintStatement = "coterie_mark"

// reopenAfter is the pause after the session could not be opened.
const reopenAfter = time.Second

// maxFingerprint bounds an answer in bytes: its text grows with the memberships of a role.
const maxFingerprint = 64 << 10

// fingerprintConn asks the local server for fingerprints of logins, on a session of its own. A query and its answer
// take two turns of its loop and wake no goroutine. Many queries may be outstanding; the server answers them in
// order. Fingerprints of two sessions may differ although nothing has changed, since each process of PostgreSQL has
// its own time of the last reload. So there is one connection, on the first loop, and goroutines use it, too.
type fingerprintConn struct {
	loop     *loop
	fd       int // -1: no session is open
	waiting  []pendingQuery
	in       []byte           // an incomplete message
	answer   LoginFingerprint // the answer to waiting[0]
	answered bool             // answer is set
	timed    bool             // a timer bounds the oldest query

	mu      sync.Mutex
	opened  int           // guarded by mu: a session that was opened and not used yet; -1: none
	opening bool          // guarded by mu
	after   time.Duration // guarded by mu: no session is opened before this instant of CLOCK_BOOTTIME
}

// pendingQuery is a query that was sent and is not answered.
type pendingQuery struct {
	at     time.Duration // CLOCK_BOOTTIME
	answer func(m LoginFingerprint, ok bool)
}

func newFingerprintConn(l *loop) fingerprintConn { return fingerprintConn{loop: l, fd: -1, opened: -1} }

// ask queries the fingerprint of a role in a database. It calls answer on the loop later, or reports false and never
// calls it.
func (a *fingerprintConn) ask(user, database string, answer func(m LoginFingerprint, ok bool)) bool {
	if a.fd < 0 && !a.begin() {
		return false
	}
	text := fingerprintQuery(user, database)
	if !a.loop.Batch.Queue(a, a.fd, text) {
		if a.loop.Batch.Holds(a) {
			return false // the batch is full, and answers come in the order of the queries
		}
		if n, err := socket.Write(a.fd, text); err != nil || n < len(text) {
			a.lost()
			return false
		}
	}
	a.waiting = append(a.waiting, pendingQuery{boottime.Now(), answer})
	a.watch()
	return true
}

// fingerprintOf is ask for goroutines. Without a session for queries it asks the server on another one
// (Config.Fingerprint).
func (s *Server) fingerprintOf(ctx context.Context, user, database string) (LoginFingerprint, error) {
	if l := s.firstLoop(); l != nil && s.cfg.FingerprintSession != nil {
		type reply struct {
			fingerprint LoginFingerprint
			ok          bool
		}
		there := make(chan reply, 1)
		l.Post(func() {
			answer := func(m LoginFingerprint, ok bool) { there <- reply{m, ok} }
			if !l.fingerprints.ask(user, database, answer) {
				answer(LoginFingerprint{}, false)
			}
		})
		select {
		case r := <-there:
			if r.ok {
				return r.fingerprint, nil
			}
		case <-ctx.Done():
			return LoginFingerprint{}, context.Cause(ctx)
		}
	}
	return s.cfg.Fingerprint(ctx, user, database)
}

// fingerprintQuery returns the messages that execute the statement.
func fingerprintQuery(user, database string) []byte {
	b := append(pgwire.AppendCString([]byte{0}, FingerprintStatement), 0, 0, 0, 2) // unnamed portal, no formats: text
	for _, v := range []string{user, database} {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
	}
	out := pgwire.AppendMessage(nil, 'B', append(b, 0, 0))
	out = pgwire.AppendMessage(out, 'E', []byte{0, 0, 0, 0, 0})
	return pgwire.AppendMessage(out, 'S', nil)
}

// begin takes up a session that was opened, or has one opened. It reports whether there is one.
func (a *fingerprintConn) begin() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fd, a.opened = a.opened, -1; a.fd >= 0 {
		err := a.loop.Watch(a.fd, a, unix.EPOLL_CTL_ADD, unix.EPOLLIN)
		if err != nil {
			a.loop.srv.log.Warn("watch the session for login fingerprints", "error", err)
			a.lost()
		}
		return err == nil
	}
	if s := a.loop.srv; !a.opening && boottime.Now() >= a.after && s.life.Err() == nil {
		a.opening = true
		s.background("opening the session for login fingerprints", a.open) // the caller is counted there
	}
	return false
}

// open opens a session.
func (a *fingerprintConn) open() {
	s := a.loop.srv
	ctx, cancel := context.WithTimeout(s.life, s.cfg.Limits.BackendHandshake)
	defer cancel()
	var conn net.Conn
	var err error
	fd := -1
	if conn, err = s.cfg.FingerprintSession(ctx); err == nil {
		fd, err = socket.Duplicate(conn)
		_ = conn.Close()
	}
	if err != nil {
		s.log.Info("event loops complete no logins: the session for login fingerprints could not be opened", "error", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.opening, a.opened, a.after = false, fd, boottime.Now()
	if err != nil {
		a.after += reopenAfter
	}
}

// rescue lets a panic end the session for fingerprints, and nothing else.
func (a *fingerprintConn) rescue() {
	if r := recover(); r != nil {
		s := a.loop.srv
		s.log.Error("session panicked", "direction", "login fingerprints", "panic", r, "stack", string(debug.Stack()))
		s.counts.reject("panic")
		a.lost()
	}
}

// Ready reads answers.
func (a *fingerprintConn) Ready(uint32) {
	defer a.rescue()
	n, err := socket.Receive(a.fd, a.loop.Buf)
	if socket.WouldWait(err) {
		return
	}
	if n == 0 || err != nil {
		a.lost()
		return
	}
	a.in = append(a.in, a.loop.Buf[:n]...)
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
func (a *fingerprintConn) take(typ byte, body []byte) bool {
	switch typ {
	case 'D':
		a.answer, a.answered = parseFingerprint(body)
		return a.answered
	case 'C':
		if !a.answered { // no such role or database, as in package postgres
			a.answer, a.answered = LoginFingerprint{Exclusive: true}, true
		}
	case 'Z':
		if len(a.waiting) == 0 {
			return false
		}
		q, m, said := a.waiting[0], a.answer, a.answered
		a.waiting = slices.Delete(a.waiting, 0, 1)
		a.answer, a.answered = LoginFingerprint{}, false
		q.answer(m, said)
	case '2', 'E', 'N', 'S', 'A':
	default:
		return false
	}
	return true
}

// parseFingerprint reads the row of an answer.
func parseFingerprint(b []byte) (m LoginFingerprint, ok bool) {
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
	return LoginFingerprint{Text: column[0], Exclusive: column[1] != "f", NotReusable: column[2] != "f"}, len(b) == 0
}

// watch starts a timer that bounds the oldest query.
func (a *fingerprintConn) watch() {
	if a.timed || len(a.waiting) == 0 {
		return
	}
	a.timed = true
	patience := a.loop.srv.pool.answer
	left := max(time.Millisecond, a.waiting[0].at+patience-boottime.Now())
	time.AfterFunc(left, func() {
		a.loop.Post(func() {
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
func (a *fingerprintConn) Wrote(w *uring.Write) {
	defer a.rescue()
	if w.FD == a.fd && (w.Err != nil || w.N < len(w.B)) {
		a.lost()
	}
}

// lost closes the session, if there is one. Outstanding queries are answered with ok false.
func (a *fingerprintConn) lost() {
	if a.fd < 0 {
		return
	}
	a.loop.Batch.Remove(a)
	a.loop.Forget(a.fd)
	_ = unix.Close(a.fd)
	list := a.waiting
	a.fd, a.waiting, a.in, a.answer, a.answered = -1, nil, nil, LoginFingerprint{}, false
	for _, q := range list {
		q.answer(LoginFingerprint{}, false)
	}
}

// close closes the session, with the loop.
func (a *fingerprintConn) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, fd := range []int{a.fd, a.opened} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	a.fd, a.opened = -1, -1
}

// stateful are libraries that keep state in a session which no view shows. Their files may begin with lib, and go on
// with a version.
var stateful = strings.Fields(`plperl plpython3 plpython2 pltcl plv8 plr pljava dblink hypopg orafce pg_variables pgtt set_user
	session_variable`)

// statefulLibrary returns why a session with the libraries of that process cannot be moved; "" if it can.
func statefulLibrary(pid uint32) string {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return "the libraries of its process are not known"
	}
	if name := statefulIn(maps); name != "" {
		return "it has used " + name + ", which keeps state of its own"
	}
	return ""
}

// statefulExtension returns why a session in a database with these extensions cannot be moved, if nothing else is known
// of the libraries of its process; "" if it can.
func statefulExtension(extensions []string) string {
	for _, e := range extensions {
		for _, name := range stateful {
			if strings.HasPrefix(e, name) {
				return "its database has " + e + ", which keeps state of its own"
			}
		}
	}
	if len(extensions) == 0 { // each has plpgsql
		return "the extensions of its database are not known"
	}
	return ""
}

// statefulIn returns one of the stateful libraries in the memory map of a process; "" if there is none.
func statefulIn(maps []byte) string {
	for line := range bytes.Lines(maps) {
		file := string(bytes.TrimPrefix(line[bytes.LastIndexByte(line, '/')+1:], []byte("lib")))
		for _, name := range stateful {
			if after, ok := strings.CutPrefix(file, name); ok && strings.Contains(after, ".") && strings.IndexByte("-.", after[0]) >= 0 {
				return name
			}
		}
	}
	return ""
}
