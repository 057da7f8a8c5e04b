package seeding

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Limits on what the source may send before it is believed.
const (
	maxMessage     = 4 << 20 // one protocol message; PostgreSQL sends archive data in pieces of 32 KiB
	maxRows        = 100_000 // rows of one result, the list of tablespaces being the longest
	startupTimeout = 30 * time.Second
	commandTimeout = 2 * time.Minute
	// A spread checkpoint may take most of checkpoint_timeout, and PROGRESS walks the whole data directory before it answers.
	checkpointTimeout = 2 * time.Hour
	copyIdleTimeout   = 5 * time.Minute
)

// SourceError is what the source's PostgreSQL answered instead of a backup.
type SourceError struct {
	Code    string // SQLSTATE
	Message string
	Detail  string
	Hint    string
}

// Error prints the source's words with what it said beside them.
func (e *SourceError) Error() string {
	s := fmt.Sprintf("the source answered %s: %s", e.Code, e.Message)
	for _, more := range []string{e.Detail, e.Hint} {
		if more != "" {
			s += " (" + more + ")"
		}
	}
	return s
}

// duplicateObject is the SQLSTATE of "replication slot already exists".
const duplicateObject = "42710"

// session is a replication connection to the source: commands in, results and archives out. It is used by one goroutine.
type session struct {
	front   *pgproto3.Frontend
	wire    *wire
	version string // the server's own words
	major   int
}

// connect sends the startup packet and waits until the source takes commands.
func connect(ctx context.Context, o Options) (*session, error) {
	w := &wire{ctx: ctx, conn: o.Conn, rate: o.MaxRate, idle: startupTimeout}
	s := &session{front: pgproto3.NewFrontend(w, w), wire: w}
	s.front.SetMaxBodyLen(maxMessage)
	if !o.Joined {
		s.front.Send(&pgproto3.StartupMessage{
			ProtocolVersion: pgproto3.ProtocolVersion30,
			Parameters: map[string]string{
				"user": o.User, "replication": "true", "application_name": "coterie_seed",
				// A backup outlasts every timeout that an administrator may have set for sessions.
				"statement_timeout": "0", "lock_timeout": "0",
				"idle_session_timeout": "0", "idle_in_transaction_session_timeout": "0",
			},
		})
		if err := s.front.Flush(); err != nil {
			return nil, err
		}
	}
	for {
		msg, err := s.read()
		if err != nil {
			return nil, err
		}
		switch m := msg.(type) {
		case *pgproto3.AuthenticationOk, *pgproto3.BackendKeyData, *pgproto3.NegotiateProtocolVersion:
		case *pgproto3.ReadyForQuery:
			return s, s.checkVersion()
		default:
			return nil, fmt.Errorf("the source asks for authentication (%T) on its private socket; its hba rules must trust %q there", m, o.User)
		}
	}
}

// checkVersion learns the protocol variant from server_version.
func (s *session) checkVersion() error {
	digits := s.version
	if i := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		digits = digits[:i]
	}
	major, err := strconv.Atoi(digits)
	if err != nil || major < 14 {
		return fmt.Errorf("the source runs PostgreSQL %q; seeding needs 14 or later", s.version)
	}
	s.major = major
	return nil
}

// read returns the next message that matters: notices are dropped, an error response is returned as *SourceError.
func (s *session) read() (pgproto3.BackendMessage, error) {
	for {
		msg, err := s.front.Receive()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, fmt.Errorf("read from the source: %w", err)
		}
		switch m := msg.(type) {
		case *pgproto3.NoticeResponse, *pgproto3.NotificationResponse:
		case *pgproto3.ParameterStatus:
			if m.Name == "server_version" {
				s.version = m.Value
			}
		case *pgproto3.ErrorResponse:
			return nil, &SourceError{Code: m.Code, Message: m.Message, Detail: m.Detail, Hint: m.Hint}
		default:
			return msg, nil
		}
	}
}

// send starts a command whose first answer must come within limit.
func (s *session) send(command string, limit time.Duration) error {
	s.wire.idle = limit
	s.front.Send(&pgproto3.Query{String: command})
	return s.front.Flush()
}

// rows reads one result set; a NULL is a nil slice.
func (s *session) rows() ([][][]byte, error) {
	var rows [][][]byte
	described := false
	for {
		msg, err := s.read()
		if err != nil {
			return nil, err
		}
		switch m := msg.(type) {
		case *pgproto3.RowDescription:
			described = true
		case *pgproto3.DataRow:
			if !described || len(rows) >= maxRows {
				return nil, errors.New("the source sent rows that were not announced, or too many")
			}
			row := make([][]byte, len(m.Values))
			for i, v := range m.Values {
				if v != nil {
					row[i] = append([]byte{}, v...)
				}
			}
			rows = append(rows, row)
		case *pgproto3.CommandComplete:
			return rows, nil
		default:
			return nil, fmt.Errorf("the source sent %T in place of a result", m)
		}
	}
}

// row reads a result set of one row with at least n columns.
func (s *session) row(n int) ([][]byte, error) {
	rows, err := s.rows()
	if err != nil {
		return nil, err
	}
	if len(rows) != 1 || len(rows[0]) < n {
		return nil, fmt.Errorf("the source answered with %d rows, one row of %d columns was expected", len(rows), n)
	}
	return rows[0], nil
}

// ready reads to the end of the command's answer. PostgreSQL reports checksum failures only here.
func (s *session) ready() error {
	for {
		msg, err := s.read()
		if err != nil {
			return err
		}
		switch m := msg.(type) {
		case *pgproto3.CommandComplete:
		case *pgproto3.ReadyForQuery:
			return nil
		default:
			return fmt.Errorf("the source sent %T after its answer", m)
		}
	}
}

// ask runs a command that answers with one row of at least n columns.
func (s *session) ask(command string, n int) ([][]byte, error) {
	if err := s.send(command, commandTimeout); err != nil {
		return nil, err
	}
	row, err := s.row(n)
	if err != nil {
		var se *SourceError
		if errors.As(err, &se) {
			// The source is ready again after it refused; let the next command begin there.
			if rerr := s.ready(); rerr != nil {
				return nil, rerr
			}
		}
		return nil, err
	}
	return row, s.ready()
}

// goodbye ends a session that has nothing under way, so that the source logs no lost connection. Run closes the connection.
func (s *session) goodbye() {
	s.wire.idle = time.Second
	s.front.Send(&pgproto3.Terminate{})
	_ = s.front.Flush() // a courtesy: closing the connection says the same
}

// wire is the connection with its clock: every read and write has a deadline, bytes are counted, and reading is slowed down
// to the wanted rate, which makes the source wait.
type wire struct {
	ctx   context.Context // ends waiting for the rate limit; the connection itself is closed by Run
	conn  net.Conn
	rate  int64
	idle  time.Duration // how long the other side may stay silent
	read  int64
	began time.Time // of the first byte counted against the rate
	spent int64     // bytes counted against the rate
}

// Read reads from the connection within the idle limit and then waits as long as the rate asks for.
func (w *wire) Read(p []byte) (int, error) {
	if err := w.conn.SetReadDeadline(time.Now().Add(w.idle)); err != nil {
		return 0, err
	}
	n, err := w.conn.Read(p)
	w.read += int64(n)
	if err == nil && w.rate > 0 {
		err = w.pace(int64(n))
	}
	return n, err
}

// Write writes to the connection within the idle limit.
func (w *wire) Write(p []byte) (int, error) {
	if err := w.conn.SetWriteDeadline(time.Now().Add(w.idle)); err != nil {
		return 0, err
	}
	return w.conn.Write(p)
}

// pace waits until n more bytes are within the rate. Time in which nothing came earns no credit beyond one second, so that a
// pause is not followed by a burst.
func (w *wire) pace(n int64) error {
	now := time.Now()
	due := w.began.Add(time.Duration(float64(w.spent) / float64(w.rate) * float64(time.Second)))
	if w.began.IsZero() || now.Sub(due) > time.Second {
		w.began, w.spent, due = now, 0, now
	}
	w.spent += n
	wait := due.Sub(now)
	if wait < 10*time.Millisecond {
		return nil // not worth a timer; what is owed stays owed
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-w.ctx.Done():
		return context.Cause(w.ctx)
	}
}
