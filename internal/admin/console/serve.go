package console

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/admin/batch"
	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// maxMessage is the maximum size of a client's message in bytes.
const maxMessage = 1 << 20

// How long a client may take to read what is sent at once, and how many bytes are collected before they are sent.
const (
	writeLimit = time.Minute
	flushBytes = 64 << 10
)

// Hello is a client that the listener has authenticated.
type Hello struct {
	Who      Principal
	Settings map[string]string // of its startup packet
	PID      uint32            // with Secret, the key of the client's cancel requests
	Secret   uint32
	Cancel   <-chan struct{} // requests to cancel the running statement; ignored while none runs. nil: there are none
	Look     Look            // looks the role up again; nil: it keeps what it had
	Places   *Places         // of the node's console; nil: as for a console of its own
	Logger   *slog.Logger
}

// Serve serves an authenticated client, which has received AuthenticationOk, until it disconnects or ctx is done. It
// does not close the connection.
func Serve(ctx context.Context, conn net.Conn, b Backend, hello Hello) (err error) {
	defer func() {
		if r := recover(); r != nil {
			hello.Logger.Error("console session panicked", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = errors.New("the session failed by a bug; the node's log has the details")
		}
	}()
	if hello.Places == nil {
		hello.Places = NewPlaces(Limits{})
	}
	unhook := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	w := &wire{
		ctx: ctx, conn: conn, b: pgproto3.NewBackend(conn, conn), s: NewSession(b, hello.Who),
		statements: map[string]*prepared{}, portals: map[string]*portal{},
	}
	w.s.look, w.s.looked = hello.Look, time.Now()
	w.hello, w.s.interrupt, w.s.limits = hello, hello.Cancel, hello.Places.limits
	w.s.late = func() { hello.Places.late.Add(1) }
	w.b.SetMaxBodyLen(maxMessage)
	if hello.Who.May < ddl.MayLook {
		return w.deny(Errorf("42501", "role %q may not use the console", hello.Who.User).
			WithHint("GRANT coterie_viewer, coterie_operator or coterie_admin to it, in any other database of the group."))
	}
	leave, refused := hello.Places.enter(hello.Who)
	if refused != nil {
		hello.Logger.Warn("console session refused", "user", hello.Who.User, "err", refused.Message)
		return w.deny(refused)
	}
	defer leave()
	for name, value := range hello.Settings {
		_ = w.s.assign(name, value) // a setting that cannot be changed at the start keeps its value
	}
	w.s.changed, w.s.first = nil, maps.Clone(w.s.settings)
	if err := w.greet(); err != nil {
		return err
	}
	return w.converse()
}

// converse serves the client's messages until it disconnects, is idle for too long, or the node stops.
func (w *wire) converse() error {
	idle := w.hello.Places.limits.Idle
	for {
		_ = w.conn.SetReadDeadline(time.Now().Add(idle))
		if w.ctx.Err() != nil {
			return nil // the deadline may have replaced that of the end
		}
		m, err := w.b.Receive()
		var slow net.Error
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), w.ctx.Err() != nil:
			return nil
		case errors.As(err, &slow) && slow.Timeout():
			w.hello.Places.idle.Add(1)
			return w.deny(Errorf("57P05", "terminating connection: nothing was asked for %v", idle).WithHint("limits.console_idle in coterie.yaml is that time."))
		default:
			return err
		}
		if err := w.handle(w.ctx, m); err != nil {
			if errors.Is(err, errClosed) {
				return nil
			}
			return err
		}
		if w.lost != nil {
			return w.lost
		}
	}
}

// wire connects a session to its client.
type wire struct {
	ctx        context.Context // of the session
	conn       net.Conn
	out        []byte    // is sent at the next flush
	lost       error     // of a write: nothing is sent any more
	until      time.Time // end of the running query; zero: none sends rows
	b          *pgproto3.Backend
	hello      Hello
	s          *Session
	statements map[string]*prepared
	portals    map[string]*portal
	skipping   bool // after an error in the extended protocol, until Sync
}

type prepared struct {
	text    string
	params  []Type
	columns []Column
}

type portal struct {
	*prepared
	args    []any
	formats []int16
	bytes   int     // that are kept of arguments and rows
	result  *Result // nil: not executed yet
	at      int
}

// send sends a message at the next flush, or now if there is much to send.
func (w *wire) send(m pgproto3.BackendMessage) {
	if w.lost != nil {
		return
	}
	if w.out, w.lost = m.Encode(w.out); w.lost == nil && len(w.out) >= flushBytes {
		_ = w.flush()
	}
}

// flush sends what has been collected. After an error, which may be amid a message, nothing more is sent.
func (w *wire) flush() error {
	if w.lost != nil || len(w.out) == 0 {
		return w.lost
	}
	until := time.Now().Add(writeLimit)
	if !w.until.IsZero() && w.until.Before(until) {
		until = w.until
	}
	_ = w.conn.SetWriteDeadline(until)
	if w.ctx.Err() != nil { // the deadline may have replaced that of the end
		_ = w.conn.SetWriteDeadline(time.Unix(1, 0))
	}
	_, w.lost = w.conn.Write(w.out)
	if w.out = w.out[:0]; cap(w.out) > 2*flushBytes {
		w.out = nil
	}
	return w.lost
}

// deny sends the error that ends the session.
func (w *wire) deny(e *Error) error {
	w.send(&pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: e.State, Message: e.Message, Hint: e.Hint,
	})
	return w.flush()
}

func (w *wire) greet() error {
	for _, name := range reported {
		w.send(&pgproto3.ParameterStatus{Name: name, Value: w.s.settings[strings.ToLower(name)]})
	}
	w.send(&pgproto3.BackendKeyData{ProcessID: w.hello.PID, SecretKey: binary.BigEndian.AppendUint32(nil, w.hello.Secret)})
	return w.ready()
}

// ready reports the settings that have changed, then ReadyForQuery.
func (w *wire) ready() error {
	for _, key := range w.s.changed {
		if i := slices.IndexFunc(reported, func(n string) bool { return strings.EqualFold(n, key) }); i >= 0 {
			w.send(&pgproto3.ParameterStatus{Name: reported[i], Value: w.s.settings[key]})
		}
	}
	w.s.changed = nil
	w.send(&pgproto3.ReadyForQuery{TxStatus: w.s.tx})
	return w.flush()
}

func (w *wire) handle(ctx context.Context, m pgproto3.FrontendMessage) error {
	defer func() { w.until = time.Time{} }()
	switch m := m.(type) {
	case *pgproto3.Query:
		w.skipping = false
		w.simple(ctx, m.String)
		return w.ready()
	case *pgproto3.Terminate:
		return errClosed
	case *pgproto3.Sync:
		w.skipping = false
		if w.s.tx == txIdle {
			clear(w.portals)
		}
		return w.ready()
	case *pgproto3.Flush:
		return w.flush()
	case *pgproto3.FunctionCall, *pgproto3.CopyData, *pgproto3.CopyDone, *pgproto3.CopyFail:
		w.fail(Errorf("0A000", "the console knows neither function calls nor COPY"))
		return w.ready()
	}
	if w.skipping {
		return nil
	}
	if err := w.extended(ctx, m); err != nil {
		w.fail(err)
		w.skipping = true
		return w.flush()
	}
	return nil
}

// simple runs the statements of a text, up to the first one that fails.
func (w *wire) simple(ctx context.Context, text string) {
	parts, err := batch.Split(text)
	if err != nil {
		w.fail(err)
		return
	}
	if len(parts) == 0 {
		w.send(&pgproto3.EmptyQueryResponse{})
		return
	}
	if i := slices.IndexFunc(parts, func(p ddl.Part) bool { return Unreadable(p.Text) }); i >= 0 {
		parts = parts[i : i+1] // it fails, and nothing is done
	}
	for _, p := range parts {
		if err := w.part(ctx, p); err != nil {
			bad := AsError(err)
			if bad.Position > 0 {
				bad.Position += p.Offset
			}
			w.fail(bad)
			return
		}
	}
}

// part runs a part of a text: a statement, or a batch with variables and control flow.
func (w *wire) part(ctx context.Context, p ddl.Part) error {
	if !batch.Compound(p.Text) {
		return w.statement(ctx, p.Text)
	}
	return w.s.compound(ctx, p.Text, func(s batch.Statement) error {
		err := w.statement(ctx, s.Text)
		if err == nil {
			return nil
		}
		bad := AsError(err)
		if bad.Position > 0 {
			bad.Position += s.Offset
		}
		return bad
	}, func(r Result) {
		w.until = time.Time{} // of a statement that failed and was caught
		w.notices(r)
		w.complete(r, 0)
	})
}

// statement runs a statement and sends its answer.
func (w *wire) statement(ctx context.Context, text string) error {
	to := w.newSender(nil)
	r, err := w.s.run(ctx, text, nil, to)
	w.s.executed(err, to.sent)
	if err != nil {
		return err
	}
	w.notices(r)
	if err := to.result(r); err != nil {
		return err
	}
	r.Columns = to.columns
	w.complete(r, to.sent)
	return nil
}

// sender sends rows to the client as they come: as text, or in the formats of a portal.
type sender struct {
	w       *wire
	portal  *portal // nil: the simple protocol
	columns []Column
	sent    int
}

// newSender returns the receiver of a statement that begins now.
func (w *wire) newSender(p *portal) *sender {
	w.until = time.Now().Add(w.s.limits.Statement)
	return &sender{w: w, portal: p}
}

// Columns implements Rows. In the extended protocol the client has the columns already.
func (s *sender) Columns(list []Column) error {
	s.columns = list
	switch {
	case s.portal == nil:
		s.w.send(rowDescription(list, nil))
	case len(list) != len(s.portal.columns):
		return errChanged
	}
	return s.w.lost
}

// Notice implements Rows.
func (s *sender) Notice(text string) { s.w.notices(Result{Notices: []Notice{{"NOTICE", text}}}) }

// Row implements Rows.
func (s *sender) Row(values []any) error {
	row := textRow(values, s.columns)
	if s.portal != nil {
		var err error
		if row, err = s.portal.row(values); err != nil {
			return err
		}
	}
	s.sent++
	s.w.send(row)
	return s.w.lost
}

// result sends the rows of a statement that is no query.
func (s *sender) result(r Result) error {
	s.w.until = time.Time{}
	if r.Columns == nil {
		return nil
	}
	if err := s.Columns(r.Columns); err != nil {
		return err
	}
	for _, row := range r.Rows {
		if err := s.Row(row); err != nil {
			return err
		}
	}
	return nil
}

func textRow(row []any, columns []Column) *pgproto3.DataRow {
	out := &pgproto3.DataRow{Values: make([][]byte, len(row))}
	for i, v := range row {
		out.Values[i] = encodeText(v, columns[i].Type)
	}
	return out
}

func (w *wire) notices(r Result) {
	for _, n := range r.Notices {
		code := map[string]string{"WARNING": "01000"}[n.Severity]
		if code == "" {
			code = "00000"
		}
		w.send(&pgproto3.NoticeResponse{Severity: n.Severity, SeverityUnlocalized: n.Severity, Code: code, Message: n.Message})
	}
}

// complete ends the answer to a statement that has sent so many rows.
func (w *wire) complete(r Result, rows int) {
	tag := r.Tag
	if r.Columns != nil && tag == "SELECT" {
		tag = fmt.Sprintf("SELECT %d", rows)
	}
	w.send(&pgproto3.CommandComplete{CommandTag: []byte(tag)})
}

func (w *wire) fail(err error) {
	w.until = time.Time{} // of the statement, and not of its refusal
	e := AsError(err)
	w.send(&pgproto3.ErrorResponse{
		Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: e.State, Message: e.text(), Detail: e.Detail, Hint: e.Hint, Position: int32(e.Position),
	})
}

func rowDescription(columns []Column, formats []int16) *pgproto3.RowDescription {
	d := &pgproto3.RowDescription{}
	for i, c := range columns {
		d.Fields = append(d.Fields, pgproto3.FieldDescription{
			Name: []byte(c.Name), DataTypeOID: uint32(c.Type), DataTypeSize: typeSize(c.Type), TypeModifier: -1, Format: format(formats, i),
		})
	}
	return d
}

func typeSize(t Type) int16 {
	switch t {
	case Bool:
		return 1
	case Int4, OID, Date:
		return 4
	case Int8, Float8, Timestamptz:
		return 8
	case UUID:
		return 16
	default:
		return -1
	}
}

// format returns the format of column i. Without formats it is text; a single one applies to all columns.
func format(formats []int16, i int) int16 {
	switch {
	case len(formats) == 0:
		return 0
	case len(formats) == 1:
		return formats[0]
	case i < len(formats):
		return formats[i]
	}
	return 0
}
