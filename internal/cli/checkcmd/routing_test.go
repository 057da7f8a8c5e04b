package checkcmd

import (
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/cli/clitest"
)

// routes is the answer to VERIFY ROUTING of a node n1 that is the primary and has a list of two.
func routes() console.Result {
	return console.Result{Rows: [][]any{
		{"n1", "READ_WRITE", "n1", nil, nil},
		{"n1", "READ_ONLY", "n3", json.Number("2"), "n2 is suspended; n4 is away"},
		{"n2", "READ_ONLY", "n1", nil, ""},
	}}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		l         login
		primary   bool
		entry     int
		passed    int
		complains string
	}{
		"a writer at the primary":        {login{Node: "n1", Intent: "READ_WRITE", Answered: "n1"}, true, 0, 0, ""},
		"a writer elsewhere":             {login{Node: "n1", Intent: "READ_WRITE", Answered: "n2"}, false, 0, 0, "a session that writes was not sent to the primary"},
		"a writer that nobody answered":  {login{Node: "n1", Intent: "READ_WRITE"}, false, 0, 0, "a session that writes was not sent to the primary"},
		"a failed login keeps its error": {login{Node: "n1", Intent: "READ_WRITE", Error: "refused"}, false, 0, 0, "refused"},
		"a reader by the list":           {login{Node: "n1", Intent: "READ_ONLY", Answered: "n3"}, false, 2, 2, ""},
		"a reader at the primary":        {login{Node: "n1", Intent: "READ_ONLY", Answered: "n1"}, true, 2, 2, "a session that reads was sent to the primary, and the list names another"},
		"whose list names the primary":   {login{Node: "n2", Intent: "READ_ONLY", Answered: "n1"}, true, 0, 0, ""},
		"of a node without a list":       {login{Node: "n9", Intent: "READ_ONLY", Answered: "n1"}, true, 0, 0, ""},
	} {
		tt.l.judge("n1", routes())
		if tt.l.Primary != tt.primary || tt.l.Entry != tt.entry || len(tt.l.Passed) != tt.passed || tt.l.Error != tt.complains {
			t.Errorf("%s: %+v", name, tt.l)
		}
	}
}

// listening is a server that takes every login, or refuses all with one error. It remembers the startup packets.
type listening struct {
	address string
	refuse  *pgproto3.ErrorResponse // set before the first login

	mu      sync.Mutex
	asked   []map[string]string
	clients []string
}

func listen(t *testing.T, refuse *pgproto3.ErrorResponse) *listening {
	t.Helper()
	s, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &listening{address: s.Addr().String(), refuse: refuse}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				if err := l.serve(c); err != nil {
					t.Error(err)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = s.Close()
		served.Wait()
	})
	return l
}

func (l *listening) serve(c net.Conn) error {
	defer func() { _ = c.Close() }()
	b := pgproto3.NewBackend(c, c)
	for {
		m, err := b.ReceiveStartupMessage()
		if err != nil {
			return err
		}
		start, ok := m.(*pgproto3.StartupMessage)
		if !ok { // it asks for TLS
			if _, err := c.Write([]byte("N")); err != nil {
				return err
			}
			continue
		}
		l.mu.Lock()
		l.asked = append(l.asked, start.Parameters)
		l.clients = append(l.clients, c.RemoteAddr().String())
		l.mu.Unlock()
		break
	}
	if l.refuse != nil {
		b.Send(l.refuse)
		return b.Flush()
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if err := b.Flush(); err != nil {
		return err
	}
	_, _ = b.Receive() // its end
	return nil
}

// routed returns a fake agent of n1 whose listener is l, and on which n1 answers all sessions.
func routed(t *testing.T, l *listening) *clitest.Agent {
	t.Helper()
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Node: "n1", Primary: "n1", Replicas: []api.Replica{{Name: "n1", Listener: l.address, ReadOnly: l.address}, {Name: "w"}}})
	a.OnSQL("FROM coterie.sessions", []string{"replica"}, []any{"n1"})
	a.OnSQL("VERIFY ROUTING", []string{"node", "intent", "target", "entry", "passed"}, []any{"n1", "READ_WRITE", "n1", nil, nil}, []any{"n1", "READ_ONLY", "n1", 1, ""})
	return a
}

// TestLogins checks that each carrier of an intent reaches the listener in its own way, and that the answering replica
// is looked up by the session's own address.
func TestLogins(t *testing.T) {
	t.Parallel()
	l := listen(t, nil)
	a := routed(t, l)
	r := clitest.Run(t, Check(), a.Layout.Dir, "routing", "--user", "app", "--database", "shop", "--json")
	var found []login
	if err := json.Unmarshal([]byte(r.Out), &found); err != nil || r.Err != nil || len(found) != len(carriers) {
		t.Fatalf("%v, %v\n%s", err, r.Err, r.Out)
	}
	asked := a.Asked("SQL")
	for i, k := range carriers {
		got := l.asked[i]
		if got["user"] != "app" || got["database"] != "shop"+k.suffix {
			t.Errorf("%s: %v", k.name, got)
		}
		for name, want := range k.set {
			if got[name] != want {
				t.Errorf("%s: %s is %q, want %q", k.name, name, got[name], want)
			}
		}
		if f := found[i]; f.Carrier != k.name || f.Intent != string(k.intent) || f.Answered != "n1" || !f.Primary || f.Error != "" {
			t.Errorf("%+v", f)
		}
		if want := "client = N'" + l.clients[i] + "'"; !strings.HasSuffix(asked[i+1].(string), want) {
			t.Errorf("%s: asked %q, want %q", k.name, asked[i+1], want)
		}
	}
	text := clitest.Run(t, Check(), a.Layout.Dir, "routing", "--user", "app")
	if text.Err != nil || !strings.Contains(text.Out, "n1 (primary)") || strings.Count(text.Out, "\n") != 1+len(carriers) {
		t.Errorf("%v\n%s", text.Err, text.Out)
	}
	a.OnSQL("FROM coterie.sessions", []string{"replica"})
	r = clitest.Run(t, Check(), a.Layout.Dir, "routing", "--user", "app")
	if r.Code != 3 || !strings.Contains(r.Out, "n1 does not say who answered") || !strings.Contains(r.Err.Error(), "7 of 7 sessions") {
		t.Errorf("a session of nobody: %v\n%s", r.Err, r.Out)
	}
}

// TestLoginsRefused checks that a role that may not log in is told once, not once for each carrier; without --user the
// routes in force are shown instead. Every other error is of its own session.
func TestLoginsRefused(t *testing.T) {
	t.Parallel()
	a := routed(t, listen(t, &pgproto3.ErrorResponse{Severity: "FATAL", Code: "28P01", Message: "password authentication failed"}))
	r := clitest.Run(t, Check(), a.Layout.Dir, "routing", "--user", "app")
	r.Refused(t, 3, "login through n1: password authentication failed")
	r = clitest.Run(t, Check(), a.Layout.Dir, "routing")
	if r.Code != 3 || !strings.Contains(r.Err.Error(), "no session was tried") || !strings.Contains(r.Said, "logged in nowhere: name a role with --user") || !strings.Contains(r.Out, "READ_WRITE") {
		t.Errorf("%v, said %q\n%s", r.Err, r.Said, r.Out)
	}
	a.OnSQL("VERIFY ROUTING", []string{"node", "intent", "target", "entry", "passed"}, []any{"n2", "READ_ONLY", nil, nil, "n1 is away"})
	r = clitest.Run(t, Check(), a.Layout.Dir, "routing", "--dry-run")
	if r.Code != 3 || r.Err.Error() != "n2 sends READ_ONLY sessions nowhere: n1 is away; see coterie status" {
		t.Errorf("%d, %v", r.Code, r.Err)
	}

	a = routed(t, listen(t, &pgproto3.ErrorResponse{Severity: "FATAL", Code: "57P03", Message: "no replica takes it"}))
	r = clitest.Run(t, Check(), a.Layout.Dir, "routing", "--user", "app", "--json")
	var found []login
	if err := json.Unmarshal([]byte(r.Out), &found); err != nil || r.Code != 3 || len(found) != len(carriers) || !strings.Contains(found[0].Error, "no replica takes it") {
		t.Errorf("%v, %v\n%s", err, r.Err, r.Out)
	}
	a.SetStatus(api.Status{Node: "w", Replicas: []api.Replica{{Name: "w"}}})
	clitest.Run(t, Check(), a.Layout.Dir, "routing", "--user", "app").Refused(t, 1, "no node has a listener")
}

// TestNoRoutes checks the errors before any login.
func TestNoRoutes(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.RefuseSQL("VERIFY ROUTING", console.Error{State: "57P03", Message: "n2 does not answer"})
	clitest.Run(t, Check(), a.Layout.Dir, "routing").Refused(t, 3, "n2 does not answer")
	r := clitest.Run(t, Check(), clitest.NewStopped(t), "routing")
	r.Refused(t, 3, "no agent runs")
	if errors.Unwrap(r.Err) == nil {
		t.Error("the error has no kind")
	}
}
