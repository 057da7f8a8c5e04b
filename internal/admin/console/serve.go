package console

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// maxMessage is the maximum size of a client's message in bytes.
const maxMessage = 1 << 20

// writeLimit is how long a client may take to read an answer.
const writeLimit = time.Minute

// Hello is a client that the listener has authenticated.
type Hello struct {
	Who      Principal
	Settings map[string]string // of its startup packet
	PID      uint32            // with Secret, the key of the client's cancel requests
	Secret   uint32
	Cancel   <-chan struct{} // requests to cancel the running statement; ignored while none runs. nil: there are none
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
	unhook := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	w := &wire{
		conn: conn, b: pgproto3.NewBackend(conn, conn), s: NewSession(b, hello.Who),
		statements: map[string]*prepared{}, portals: map[string]*portal{},
	}
	w.hello, w.s.interrupt = hello, hello.Cancel
	w.b.SetMaxBodyLen(maxMessage)
	if hello.Who.May < ddl.MayLook {
		return w.deny(hello.Who)
	}
	for name, value := range hello.Settings {
		_ = w.s.assign(name, value) // a setting that cannot be changed at the start keeps its value
	}
	w.s.changed = nil
	if err := w.greet(); err != nil {
		return err
	}
	for {
		m, err := w.b.Receive()
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err := w.handle(ctx, m); err != nil {
			if errors.Is(err, errClosed) {
				return nil
			}
			return err
		}
	}
}

// wire connects a session to its client.
type wire struct {
	conn       net.Conn
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
	result  *Result // nil: not executed yet
	at      int
}

func (w *wire) flush() error {
	_ = w.conn.SetWriteDeadline(time.Now().Add(writeLimit))
	return w.b.Flush()
}

func (w *wire) deny(who Principal) error {
	w.b.Send(&pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "42501",
		Message: fmt.Sprintf("role %q may not use the console", who.User),
		Hint:    "GRANT coterie_viewer, coterie_operator or coterie_admin to it, in any other database of the group.",
	})
	return w.flush()
}

func (w *wire) greet() error {
	for _, name := range reported {
		w.b.Send(&pgproto3.ParameterStatus{Name: name, Value: w.s.settings[strings.ToLower(name)]})
	}
	w.b.Send(&pgproto3.BackendKeyData{ProcessID: w.hello.PID, SecretKey: binary.BigEndian.AppendUint32(nil, w.hello.Secret)})
	return w.ready()
}

// ready reports the settings that have changed, then ReadyForQuery.
func (w *wire) ready() error {
	for _, key := range w.s.changed {
		if i := slices.IndexFunc(reported, func(n string) bool { return strings.EqualFold(n, key) }); i >= 0 {
			w.b.Send(&pgproto3.ParameterStatus{Name: reported[i], Value: w.s.settings[key]})
		}
	}
	w.s.changed = nil
	w.b.Send(&pgproto3.ReadyForQuery{TxStatus: w.s.tx})
	return w.flush()
}

func (w *wire) handle(ctx context.Context, m pgproto3.FrontendMessage) error {
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
	parts, err := ddl.Split(text)
	if err != nil {
		w.fail(err)
		return
	}
	if len(parts) == 0 {
		w.b.Send(&pgproto3.EmptyQueryResponse{})
		return
	}
	for _, p := range parts {
		r, err := w.s.run(ctx, p.Text, nil)
		if err != nil {
			bad := asError(err)
			if bad.Position > 0 {
				bad.Position += p.Offset
			}
			w.fail(bad)
			return
		}
		w.notices(r)
		if r.Columns != nil {
			w.b.Send(rowDescription(r.Columns, nil))
		}
		for _, row := range r.Rows {
			w.b.Send(textRow(row, r.Columns))
		}
		w.complete(r)
	}
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
		w.b.Send(&pgproto3.NoticeResponse{Severity: n.Severity, SeverityUnlocalized: n.Severity, Code: code, Message: n.Message})
	}
}

func (w *wire) complete(r Result) {
	tag := r.Tag
	if r.Columns != nil && tag == "SELECT" {
		tag = fmt.Sprintf("SELECT %d", len(r.Rows))
	}
	w.b.Send(&pgproto3.CommandComplete{CommandTag: []byte(tag)})
}

func (w *wire) fail(err error) {
	e := asError(err)
	w.b.Send(&pgproto3.ErrorResponse{
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
	case Int4, OID:
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
