package clientport

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/postgres/login"
)

// actor is a console's backend that counts the statements it is given.
type actor struct {
	console.Backend
	acted int
}

func (a *actor) Version() string { return "18.0" }

func (a *actor) Denied(console.Principal, ddl.Statement, *console.Error) {}

func (a *actor) Execute(context.Context, console.Principal, ddl.Statement) (console.Result, error) {
	a.acted++
	return console.Result{Tag: "FAILOVER"}, nil
}

// TestConsoleSessionLooksAgain holds that a session of the console asks this node for its role before it acts: a role
// that was an operator at the login, and has lost that since, changes nothing.
func TestConsoleSessionLooksAgain(t *testing.T) {
	t.Parallel()
	operator := login.Role{CanLogin: true, MemberOf: []string{"coterie_operator"}}
	for name, tt := range map[string]struct {
		now   login.Role
		err   error
		state string // of the answer; "": it acted
		acted int
	}{
		"an operator still": {operator, nil, "", 1},
		"a viewer now":      {login.Role{CanLogin: true, MemberOf: []string{"coterie_viewer"}}, nil, "42501", 0},
		"it is gone":        {login.Role{}, login.ErrNoRole, "42501", 0},
	} {
		n, backend := primary(), &actor{}
		n.server.role, n.server.roleErr = tt.now, tt.err
		p := n.port(t)
		p.c.Console = func() console.Backend { return backend }
		here, there := net.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer there.Close()
			p.serveConsole(t.Context(), there, listener.ConsoleHello{User: "olaf", Role: listener.Role{CanLogin: true, MemberOf: operator.MemberOf}})
		}()
		_ = here.SetDeadline(time.Now().Add(time.Minute))
		if state := answer(t, here, "ALTER AVAILABILITY GROUP [sales] FAILOVER"); state != tt.state {
			t.Errorf("%s: %q", name, state)
		}
		_ = here.Close()
		<-ended
		if backend.acted != tt.acted {
			t.Errorf("%s: %d statements were carried out", name, backend.acted)
		}
	}
}

// answer sends a statement as soon as the server is ready for one, and returns the SQLSTATE of its failure, if any.
func answer(t *testing.T, conn net.Conn, statement string) (state string) {
	t.Helper()
	f := pgproto3.NewFrontend(conn, conn)
	for sent := false; ; {
		m, err := f.Receive()
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case *pgproto3.ErrorResponse:
			state = m.Code
		case *pgproto3.ReadyForQuery:
			if sent {
				return state
			}
			f.Send(&pgproto3.Query{String: statement})
			if err := f.Flush(); err != nil {
				t.Fatal(err)
			}
			sent = true
		}
	}
}
