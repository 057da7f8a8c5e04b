package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// TestPlaces holds that sessions are limited for each role and in all, that administrators have reserved ones, that a
// refusal tells the limit, and that each is counted.
func TestPlaces(t *testing.T) {
	p := NewPlaces(Limits{Sessions: 10, PerRole: 3})
	var leaves []func()
	for i := range 10 {
		leave, err := p.enter(Principal{User: fmt.Sprint("viewer ", i/4), May: ddl.MayLook})
		if (err != nil) != (i == 3 || i > 6) {
			t.Errorf("session %d: %v", i, err)
		}
		if err == nil {
			leaves = append(leaves, leave)
		} else if err.State != "53300" || !strings.Contains(err.Hint, "limits.console_sessions") {
			t.Errorf("session %d: %+v", i, err)
		}
	}
	for i := range Reserved {
		leave, err := p.enter(Principal{User: fmt.Sprint("admin ", i/3), May: ddl.MayAdminister})
		if err != nil {
			t.Errorf("administrator %d: %v", i, err)
			continue
		}
		leaves = append(leaves, leave)
	}
	if _, err := p.enter(Principal{User: "admin 9", May: ddl.MayAdminister}); err == nil || !strings.Contains(err.Message, "10 of 10 are open") {
		t.Errorf("beyond all places: %v", err)
	}
	if _, err := p.enter(Principal{User: "viewer 0", May: ddl.MayLook}); err == nil || !strings.Contains(err.Message, `role "viewer 0": 3 of 3`) {
		t.Errorf("beyond the places of a role: %v", err)
	}
	if c := p.Counts(); c.Sessions != 10 || c.Limits["sessions"] != 3 || c.Limits["sessions_per_role"] != 3 {
		t.Errorf("%+v", c)
	}
	for _, leave := range leaves {
		leave()
	}
	if p.all != 0 || len(p.open) != 0 {
		t.Errorf("places are lost: %d, %v", p.all, p.open)
	}
}

// dial serves a session on a pipe without a buffer, and returns the client's end and the session's result.
func dial(t *testing.T, b Backend, hello Hello) (*pgproto3.Frontend, net.Conn, <-chan error) {
	t.Helper()
	client, server := net.Pipe()
	ended := make(chan error, 1)
	hello.Logger = slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- Serve(ctx, server, b, hello); _ = server.Close() }()
	t.Cleanup(func() { cancel(); _ = client.Close() })
	return pgproto3.NewFrontend(client, client), client, ended
}

// receive reads messages until one of that type comes.
func receive[M pgproto3.BackendMessage](t *testing.T, f *pgproto3.Frontend) M {
	t.Helper()
	for {
		m, err := f.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if x, ok := m.(M); ok {
			return x
		}
	}
}

// TestIdleSession holds that a session which asks nothing is ended, told why and counted, and gives its place back.
func TestIdleSession(t *testing.T) {
	p := NewPlaces(Limits{Idle: 50 * time.Millisecond})
	f, _, ended := dial(t, newWorld(t), Hello{Who: Principal{User: "me", May: ddl.MayLook}, Places: p})
	if e := receive[*pgproto3.ErrorResponse](t, f); e.Code != "57P05" || e.Severity != "FATAL" || !strings.Contains(e.Hint, "console_idle") {
		t.Errorf("%+v", e)
	}
	if err := <-ended; err != nil || p.idle.Load() != 1 || p.all != 0 {
		t.Errorf("%v; %d idle, %d open", err, p.idle.Load(), p.all)
	}
}

// TestStatementTime holds that everybody's queries and reports have the short limit, and only what operators and
// administrators do has the long one.
func TestStatementTime(t *testing.T) {
	for _, tt := range []struct {
		may  ddl.Privilege
		text string
		long bool
	}{
		{ddl.MayLook, "SELECT 1", false},
		{ddl.MayLook, "RESUME REPLICA 'b'", false},
		{ddl.MayLook, "EXPLAIN FAILOVER", false},
		{ddl.MayOperate, "RESUME REPLICA 'b'", true},
		{ddl.MayAdminister, "ALTER AVAILABILITY GROUP shop FAILOVER", true},
		{ddl.MayAdminister, "SELECT 1", false},
		{ddl.MayAdminister, "SCRIPT", false},
		{ddl.MayAdminister, "ALTER AVAILABILITY", false},
	} {
		s := NewSession(nilBackend{}, Principal{User: "me", May: tt.may})
		want := map[bool]time.Duration{false: 10 * time.Second, true: 20 * time.Minute}[tt.long]
		if got := s.limit(classify(tt.text), tt.text); got != want {
			t.Errorf("%d: %s: %v, want %v", tt.may, tt.text, got, want)
		}
	}
	s := NewSession(slow{newWorld(t)}, Principal{User: "me", May: ddl.MayAdminister})
	late := 0
	s.limits.Statement, s.late = 10*time.Millisecond, func() { late++ }
	_, err := s.Run(t.Context(), "SELECT forever")
	var known *Error
	if !errors.As(err, &known) || known.State != "57014" || !strings.Contains(known.Message, "longer than 10ms") || late != 1 {
		t.Errorf("%v, counted %d", err, late)
	}
}

type nilBackend struct{ Backend }

func (nilBackend) Version() string { return "15.18" }

// endless is a Backend whose answers have no end.
type endless struct {
	*world
	width int
	taken chan struct{} // closed when a query has ended
}

func (e endless) Query(ctx context.Context, _ Principal, _ Question, to Rows) error {
	defer close(e.taken)
	if err := to.Columns([]Column{{"x", Text}}); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := to.Row([]any{strings.Repeat("x", e.width)}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (e endless) Describe(context.Context, Principal, string, []Type) ([]Column, []Type, error) {
	return []Column{{"x", Text}}, nil, nil
}

// TestAnswerIsSentAsItComes holds that a client gets rows of a query that has not ended, that a query ends with its
// client, and that the session keeps no more of an answer than is sent at once.
func TestAnswerIsSentAsItComes(t *testing.T) {
	for name, ask := range map[string][]pgproto3.FrontendMessage{
		"simple":   {&pgproto3.Query{String: "SELECT endless"}},
		"extended": {&pgproto3.Parse{Query: "SELECT endless"}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{}},
	} {
		b := endless{newWorld(t), 1000, make(chan struct{})}
		f, conn, ended := dial(t, b, Hello{Who: Principal{User: "me", May: ddl.MayLook}})
		receive[*pgproto3.ReadyForQuery](t, f)
		for _, m := range ask {
			f.Send(m)
		}
		go func() { _ = f.Flush() }()
		for range 1000 {
			receive[*pgproto3.DataRow](t, f)
		}
		_ = conn.Close()
		<-b.taken
		if err := <-ended; err == nil {
			t.Errorf("%s: the session ended well", name)
		}
	}
}

// TestSlowReader holds that a client which does not read its answer ends its query and its session at the statement's
// time limit, and no byte follows a message that was cut off.
func TestSlowReader(t *testing.T) {
	b := endless{newWorld(t), 1000, make(chan struct{})}
	f, _, ended := dial(t, b, Hello{Who: Principal{User: "me", May: ddl.MayLook}, Places: NewPlaces(Limits{Statement: 50 * time.Millisecond})})
	receive[*pgproto3.ReadyForQuery](t, f)
	f.Send(&pgproto3.Query{String: "SELECT endless"})
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	<-b.taken
	var timeout net.Error
	if err := <-ended; !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("the session ended with %v", err)
	}
}

// late is slow, and describes every statement.
type late struct{ slow }

func (late) Describe(context.Context, Principal, string, []Type) ([]Column, []Type, error) {
	return []Column{{"one", 23}}, nil, nil
}

// TestLateStatementKeepsItsSession holds that a statement which reaches its time limit is refused, and that the refusal
// has the time of any answer: the session answers the next statement.
func TestLateStatementKeepsItsSession(t *testing.T) {
	for name, ask := range map[string][]pgproto3.FrontendMessage{
		"simple":   {&pgproto3.Query{String: "SELECT forever"}},
		"extended": {&pgproto3.Parse{Query: "SELECT forever"}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{}},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPlaces(Limits{Statement: 10 * time.Millisecond})
			f, _, _ := dial(t, late{slow{newWorld(t)}}, Hello{Who: Principal{User: "me", May: ddl.MayLook}, Places: p})
			receive[*pgproto3.ReadyForQuery](t, f)
			for _, m := range append(ask, &pgproto3.Query{String: "SELECT 1"}) {
				f.Send(m)
			}
			go func() { _ = f.Flush() }()
			if e := receive[*pgproto3.ErrorResponse](t, f); e.Code != "57014" {
				t.Errorf("refused with %s: %s", e.Code, e.Message)
			}
			receive[*pgproto3.DataRow](t, f)
		})
	}
}

// TestKeptBytes holds that rows of suspended portals, arguments and prepared statements of a session are bounded
// together, and free again when they are closed.
func TestKeptBytes(t *testing.T) {
	b := endless{newWorld(t), 1000, make(chan struct{})}
	f, _, _ := dial(t, b, Hello{Who: Principal{User: "me", May: ddl.MayLook}})
	receive[*pgproto3.ReadyForQuery](t, f)
	var flush sync.WaitGroup
	send := func(list ...pgproto3.FrontendMessage) {
		flush.Wait()
		for _, m := range append(list, &pgproto3.Sync{}) {
			f.Send(m)
		}
		flush.Go(func() { _ = f.Flush() }) // the pipe has no buffer
	}
	send(&pgproto3.Parse{Query: "SELECT endless"}, &pgproto3.Bind{}, &pgproto3.Execute{MaxRows: 10})
	if e := receive[*pgproto3.ErrorResponse](t, f); e.Code != "54000" {
		t.Errorf("rows: %+v", e)
	}
	receive[*pgproto3.ReadyForQuery](t, f)
	var refused *pgproto3.ErrorResponse
	for i := 0; refused == nil && i < maxPrepared; i++ {
		send(&pgproto3.Parse{Name: fmt.Sprint(i), Query: "SELECT '" + strings.Repeat("x", 200<<10) + "'"})
		for done := false; !done; {
			m, err := f.Receive()
			if err != nil {
				t.Fatal(err)
			}
			switch m := m.(type) {
			case *pgproto3.ErrorResponse:
				refused = &pgproto3.ErrorResponse{Code: m.Code, Message: m.Message, Hint: m.Hint}
			case *pgproto3.ReadyForQuery:
				done = true
			}
		}
	}
	if refused == nil || refused.Code != "54000" || refused.Hint == "" {
		t.Fatalf("statements: %+v", refused)
	}
	send(&pgproto3.Close{ObjectType: 'S', Name: "0"}, &pgproto3.Parse{Name: "again", Query: "SELECT 1"})
	receive[*pgproto3.CloseComplete](t, f)
	receive[*pgproto3.ParseComplete](t, f)
}

// TestKeptParameters holds that the types of parameters and their arguments count among what a session keeps, also
// where the arguments are NULL, and that a further one is refused.
func TestKeptParameters(t *testing.T) {
	const most = 65535 // that a message has
	parse := func(name string) pgproto3.FrontendMessage {
		return &pgproto3.Parse{Name: name, Query: "SHOW TimeZone", ParameterOIDs: make([]uint32, most)}
	}
	for what, next := range map[string]func(i int) pgproto3.FrontendMessage{
		"types": func(i int) pgproto3.FrontendMessage { return parse(fmt.Sprint(i)) },
		"NULL": func(i int) pgproto3.FrontendMessage {
			return &pgproto3.Bind{PreparedStatement: "s", DestinationPortal: fmt.Sprint(i), Parameters: make([][]byte, most)}
		},
		"formats": func(i int) pgproto3.FrontendMessage {
			return &pgproto3.Bind{PreparedStatement: "one", DestinationPortal: fmt.Sprint(i), ResultFormatCodes: make([]int16, most)}
		},
	} {
		f, _, _ := dial(t, newWorld(t), Hello{Who: Principal{User: "me", May: ddl.MayLook}})
		receive[*pgproto3.ReadyForQuery](t, f)
		f.Send(parse("s"))
		f.Send(&pgproto3.Parse{Name: "one", Query: "SHOW TimeZone"})
		for i := range 40 {
			f.Send(next(i))
		}
		f.Send(&pgproto3.Sync{})
		go func() { _ = f.Flush() }() // the pipe has no buffer
		refused := ""
		for done := false; !done; {
			m, err := f.Receive()
			if err != nil {
				t.Fatal(err)
			}
			switch m := m.(type) {
			case *pgproto3.ErrorResponse:
				refused = m.Code
			case *pgproto3.ReadyForQuery:
				done = true
			}
		}
		if refused != "54000" {
			t.Errorf("%s: %q", what, refused)
		}
	}
}

// TestTooManySessions holds that a client beyond the limit hears it instead of a session.
func TestTooManySessions(t *testing.T) {
	p := NewPlaces(Limits{PerRole: 1})
	hello := Hello{Who: Principal{User: "me", May: ddl.MayLook}, Places: p}
	f, _, _ := dial(t, newWorld(t), hello)
	receive[*pgproto3.ReadyForQuery](t, f)
	g, _, ended := dial(t, newWorld(t), hello)
	if e := receive[*pgproto3.ErrorResponse](t, g); e.Code != "53300" || !strings.Contains(e.Message, "1 of 1") {
		t.Errorf("%+v", e)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
