package web

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/lib/samples"
)

// group is a node's knowledge, for tests.
type group struct {
	console.Backend

	mu        sync.Mutex // guards the fields below
	st        api.Status
	events    [][]any
	asked     []string
	may       map[string]ddl.Privilege
	block     chan struct{} // queries wait for it
	ran       []string      // statements, with the user, the way and the address
	denied    []string
	refused   error         // the answer to a statement
	hold      chan struct{} // statements and tokens wait for it
	panics    bool          // they panic
	unknown   error         // the answer about a role
	noted     []string      // acts that are no statements
	past      func(samples.Span) History
	tables    map[string]rows // of views; never changed
	verifiers map[string][sha256.Size]byte
	cannot    error    // why a host cannot hold a lease profile
	nodes     ag.Group // the configuration, where it is not that of one replica
}

// rows are those of a view, the first of which has the names of the columns.
type rows [][]any

func (r rows) send(to console.Rows) error {
	var columns []console.Column
	for _, name := range r[0] {
		columns = append(columns, console.Column{Name: fmt.Sprint(name), Type: console.Text})
	}
	if err := to.Columns(columns); err != nil {
		return err
	}
	for _, row := range r[1:] {
		if err := to.Row(row); err != nil {
			return err
		}
	}
	return nil
}

func newGroup() *group {
	return &group{
		st: api.Status{
			Group: "g", Node: "n1", Epoch: 7, Phase: ag.PhaseLead, Primary: "n1", WriteOpen: true, Quorum: true,
			Availability: availability.Report{Level: availability.Healthy, Writable: true, Automatic: availability.Ready, Failures: []availability.Failure{}, Problems: []availability.Problem{}},
			Replicas:     []api.Replica{{Name: "n1", Role: ag.RolePrimary, Sync: ag.Synchronized, Local: &api.Process{Dir: "/secret"}}},
		},
		events:    [][]any{{"n1", "2026-11-25T05:00:00Z", int64(7), "leadership", "took over", "n2 was silent"}},
		may:       map[string]ddl.Privilege{"vera": ddl.MayLook, "olaf": ddl.MayOperate, "anna": ddl.MayAdminister, "nina": ddl.MayNothing},
		verifiers: map[string][sha256.Size]byte{},
	}
}

func (g *group) status() api.Status {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.st
}

func (g *group) configuration() ag.Group {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.nodes.Replicas != nil {
		return ddl.Clone(g.nodes)
	}
	return ag.Group{ID: "i", Name: "g", Replicas: []ag.Replica{{ID: "n1", Endpoint: "n1:5022", Major: 17, AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic}}}
}

func (g *group) holds(string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cannot
}

// history is that of one replica, of which the second point is not known.
func (g *group) history(s samples.Span) History {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = append(g.asked, "history: "+s.Step.String())
	if g.past != nil {
		return g.past(s)
	}
	values := samples.Values{1, float32(math.NaN()), 3e9}
	return History{Node: "n1", End: time.Now(), StepSeconds: s.Step.Seconds(), Points: 3, Series: []Series{{Name: "lag_bytes", Replica: "n2", Metric: "coterie_replica_lag_bytes", Unit: "bytes", Mean: values, Highest: values}}}
}

func (g *group) add(row ...any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.events = append(g.events, row)
}

func (g *group) Query(ctx context.Context, who console.Principal, q console.Question, to console.Rows) error {
	g.mu.Lock()
	g.asked = append(g.asked, who.User+": "+q.SQL)
	block, events := g.block, g.events
	g.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	asked := ""
	for name := range g.tables {
		if strings.Contains(q.SQL, name) && len(name) > len(asked) { // a name may begin with another
			asked = name
		}
	}
	if asked != "" {
		return g.tables[asked].send(to)
	}
	switch {
	case strings.Contains(q.SQL, "FROM coterie.events"):
		var columns []console.Column
		for _, name := range []string{"node", "at", "epoch", "kind", "what", "because"} {
			columns = append(columns, console.Column{Name: name, Type: console.Text})
		}
		if err := to.Columns(columns); err != nil {
			return err
		}
		for _, e := range events {
			if err := to.Row(e); err != nil {
				return err
			}
		}
		return nil
	case strings.Contains(q.SQL, "large"):
		if err := to.Columns([]console.Column{{Name: "name", Type: console.Text}}); err != nil {
			return err
		}
		for range maxAnswer/1000 + 1 {
			if err := to.Row([]any{strings.Repeat("x", 1000)}); err != nil {
				return err
			}
		}
		return nil
	case strings.Contains(q.SQL, "infinite"):
		if err := to.Columns([]console.Column{{Name: "a", Type: console.Float8}, {Name: "b", Type: console.Float8}}); err != nil {
			return err
		}
		return to.Row([]any{math.Inf(1), 1.5})
	case strings.Contains(q.SQL, "nothing"):
		return console.Errorf("42P01", "no such table")
	}
	if err := to.Columns([]console.Column{{Name: "name", Type: console.Text}, {Name: "lag", Type: console.Int8}}); err != nil {
		return err
	}
	return to.Row([]any{"n1", int64(0)})
}

func (g *group) logIn(_ context.Context, a Attempt) (Account, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	may, ok := g.may[a.User]
	if !ok || a.Password != "right" {
		return Account{}, pgwire.Fatal("password", pgwire.StateInvalidPassword, "password authentication failed for user %q", a.User)
	}
	return Account{console.Principal{User: a.User, May: may}, g.verifiers[a.User]}, nil
}

func (g *group) look(ctx context.Context, user string) (Account, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return Account{}, err
	}
	if g.unknown != nil {
		return Account{}, g.unknown
	}
	return Account{console.Principal{User: user, May: g.may[user]}, g.verifiers[user]}, nil
}

// browser is a client of a served port, with cookies of its own.
type browser struct {
	t      *testing.T
	s      *Server
	at     string
	client *http.Client
	cookie *http.Cookie
	end    func() // of the server
}

// serve serves a group by TLS until the test ends.
func serve(t *testing.T, g *group) *browser { return serveAs(t, g, "n1") }

// serveAs is serve, by the node with that name.
func serveAs(t *testing.T, g *group, self ag.ReplicaID) *browser {
	t.Helper()
	s := New(Config{
		Self: self, Logger: slog.New(slog.DiscardHandler), Status: g.status, Seeding: g.seeding, Group: g.configuration, Backend: func() console.Backend { return g }, LogIn: g.logIn, Look: g.look, Try: g.try, Holds: g.holds, Token: g.token, Note: g.note,
		Certificate: func() *tls.Certificate { return nil }, History: g.history, ClientCAs: func() *x509.CertPool { return nil }, CheckClient: func([][]*x509.Certificate) error { return nil },
	})
	srv := httptest.NewTLSServer(s.handler)
	ctx, stop := context.WithCancel(t.Context())
	var hub sync.WaitGroup
	hub.Go(func() { s.hub.run(ctx) })
	hub.Go(func() { s.hub.runEvents(ctx) })
	t.Cleanup(func() { stop(); hub.Wait(); srv.CloseClientConnections(); srv.Close() })
	return &browser{t: t, s: s, at: srv.URL, client: srv.Client(), end: func() { srv.CloseClientConnections(); srv.Close() }}
}

func (b *browser) request(method, path, body string, headers ...string) *http.Request {
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.at+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Idempotency-Key", fmt.Sprint("key-", keys.Add(1)))
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	if b.cookie != nil {
		r.AddCookie(b.cookie)
	}
	return r
}

// do returns the code and the body of an answer, and keeps the cookie that it sets.
func (b *browser) do(method, path, body string, headers ...string) (int, []byte, http.Header) {
	b.t.Helper()
	resp, err := b.client.Do(b.request(method, path, body, headers...))
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range resp.Cookies() {
		b.cookie = &http.Cookie{Name: c.Name, Value: c.Value}
	}
	return resp.StatusCode, text, resp.Header
}

func (b *browser) logIn(user string) (int, http.Header) {
	b.t.Helper()
	code, _, h := b.do("POST", "/api/v1/session", fmt.Sprintf(`{"user":%q,"password":"right"}`, user))
	return code, h
}

// path returns a path of a route that exists.
func (x route) example() (path, body string) {
	name := strings.TrimPrefix(x.path, "/api/v1/")
	if x.method == "POST" {
		body = map[string]string{"query": `{"sql":"SELECT 1"}`, "session/proof": `{"password":"right"}`, "token": `{"role":"replica","minutes":15}`, "plan": `{"name":"n4","role":"replica","options":{"FAILOVER_MODE":"MANUAL"}}`, "plan/create": `{"group":"h","replicas":[{"replica":"n1"}]}`}[name] + examples[name].body
	}
	path = strings.NewReplacer("{name}", "coterie.replicas", "{id}", "none").Replace(x.path)
	if name == "history" {
		path += "?span=hour"
	}
	return path, body
}

// TestWhoMayReadWhat holds that every path but the login, the page and the description needs a session, and that the
// role decides.
func TestWhoMayReadWhat(t *testing.T) {
	t.Parallel()
	for user, want := range map[string]int{"": 401, "nina": 401, "vera": 200, "olaf": 200, "anna": 200} {
		for _, x := range routes {
			b := serve(t, newGroup())
			if user != "" {
				if code, _ := b.logIn(user); code != map[bool]int{true: 403, false: 200}[user == "nina"] {
					t.Fatalf("login of %s: %d", user, code)
				}
			}
			if x.method == "POST" && x.path == "/api/v1/session" {
				continue
			}
			want := want
			if c, is := examples[strings.TrimPrefix(x.path, "/api/v1/")]; is && x.method == "POST" {
				want = c.want(user)
			}
			switch {
			case strings.HasSuffix(x.path, "/token"):
				want = example{needs: ddl.MayAdminister}.want(user)
			case strings.HasSuffix(x.path, "{id}") && want == 200:
				want = 404
			case x.path == "/api/v1/session" && x.public && want == 401:
				want = 204 // there is no session to tell of
			case x.public:
				want = 200
			case x.method == "DELETE" && want == 200:
				want = 204
			}
			path, body := x.example()
			if code, text, _ := b.do(x.method, path, body); code != want {
				t.Errorf("%s %s of %q: %d, want %d: %s", x.method, path, user, code, want, text)
			}
		}
	}
	b := serve(t, newGroup())
	for _, path := range []string{"/metrics", "/api/v1/decisions", "/api/v1/failover", "/debug/pprof/", "/page/app.js", "/../doc.go", "/api/v1/sql"} {
		if code, _, _ := b.do("GET", path, ""); code != 404 {
			t.Errorf("GET %s: %d", path, code)
		}
	}
	for _, x := range []struct {
		method, path, allow string
		code                int
	}{
		{"POST", "/api/v1/nothing", "", 404},
		{"PATCH", "/x", "", 404},
		{"DELETE", "/api/v1/views/coterie.replicas", "GET", 405},
		{"PUT", "/api/v1/session", "GET, POST, DELETE", 405},
		{"POST", "/", "GET", 405},
	} {
		code, text, h := b.do(x.method, x.path, "{}")
		var doc problem
		if err := json.Unmarshal(text, &doc); code != x.code || err != nil || doc.Error == nil || h.Get("Allow") != x.allow {
			t.Errorf("%s %s: %d %s %q: %v", x.method, x.path, code, text, h.Get("Allow"), err)
		}
	}
	b.cookie = &http.Cookie{Name: b.s.cookieName(), Value: "guessed"}
	if code, _, _ := b.do("GET", "/api/v1/status", ""); code != 401 {
		t.Errorf("with a guessed secret: %d", code)
	}
}

// TestQueriesChangeNothing holds that a query has the rights of a viewer, whatever the role of its session is.
func TestQueriesChangeNothing(t *testing.T) {
	t.Parallel()
	g := newGroup()
	b := serve(t, g)
	b.logIn("anna")
	for _, text := range []string{"ALTER AVAILABILITY GROUP [g] FAILOVER", "ALTER AVAILABILITY GROUP [g] FORCE_FAILOVER_ALLOW_DATA_LOSS", "DROP AVAILABILITY GROUP [g]"} {
		if code, body, _ := b.do("POST", "/api/v1/query", fmt.Sprintf(`{"sql":%q}`, text)); code != 403 || !bytes.Contains(body, []byte("for reading only")) || bytes.Contains(body, []byte("GRANT")) {
			t.Errorf("%s: %d %s", text, code, body)
		}
	}
	if code, body, _ := b.do("GET", "/api/v1/status", ""); code != 200 || bytes.Contains(body, []byte("secret")) {
		t.Errorf("the status tells a directory of the host: %s", body)
	}
	if code, body, _ := b.do("GET", "/api/v1/views/coterie.nothing", ""); code != 404 {
		t.Errorf("an unknown view: %d %s", code, body)
	}
	if code, _, _ := b.do("GET", "/api/v1/views/coterie.replicas;DROP", ""); code != 404 {
		t.Errorf("a name that is none: %d", code)
	}
}

// TestCookie holds that scripts, other sites and clear text never get a session's cookie, and that it is of one node.
func TestCookie(t *testing.T) {
	t.Parallel()
	b := serve(t, newGroup())
	_, h := b.logIn("vera")
	got := h.Get("Set-Cookie")
	for _, want := range []string{"__Host-coterie-n1=", "; HttpOnly", "; Secure", "; SameSite=Strict", "; Path=/"} {
		if !strings.Contains(got, want) {
			t.Errorf("the cookie is %q, without %q", got, want)
		}
	}
	if strings.Contains(got, "Domain") {
		t.Errorf("the cookie has a domain: %s", got)
	}
	old := b.cookie
	if code, _, h := b.do("DELETE", "/api/v1/session", ""); code != 204 || !strings.Contains(h.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("logout: %d %v", code, h)
	}
	b.cookie = old
	if code, _, _ := b.do("GET", "/api/v1/status", ""); code != 401 {
		t.Errorf("after the logout: %d", code)
	}
}

// TestForeignRequests holds that a page of another origin can neither log in, log out nor query.
func TestForeignRequests(t *testing.T) {
	t.Parallel()
	b := serve(t, newGroup())
	b.logIn("vera")
	for _, h := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://elsewhere.example"}} {
		for _, x := range [][3]string{{"POST", "/api/v1/session", `{"user":"vera","password":"right"}`}, {"DELETE", "/api/v1/session", ""}, {"POST", "/api/v1/query", `{"sql":"SELECT 1"}`}} {
			if code, _, _ := b.do(x[0], x[1], x[2], h...); code != 403 {
				t.Errorf("%s %s with %v: %d", x[0], x[1], h, code)
			}
		}
	}
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", ""} {
		if code, _, _ := b.do("POST", "/api/v1/query", `{"sql":"SELECT 1"}`, "Content-Type", kind); code != 415 {
			t.Errorf("a body of type %q: %d", kind, code)
		}
	}
}

// TestHeaders holds that every answer forbids what the page does not need.
func TestHeaders(t *testing.T) {
	t.Parallel()
	b := serve(t, newGroup())
	for _, path := range []string{"/", "/app.js", "/nothing", "/api/v1/status", "/api/v1/openapi.json"} {
		_, _, h := b.do("GET", path, "")
		csp := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%s: the policy is %q", path, csp)
			}
		}
		if strings.Contains(csp, "unsafe") || strings.Contains(csp, "http") || strings.Contains(csp, "*") {
			t.Errorf("%s: the policy allows too much: %q", path, csp)
		}
		if h.Get("X-Content-Type-Options") != "nosniff" || h.Get("X-Frame-Options") != "DENY" || h.Get("Cache-Control") == "" {
			t.Errorf("%s: headers %v", path, h)
		}
	}
}

// TestLimitsOfRequests holds the sizes and numbers of requests.
func TestLimitsOfRequests(t *testing.T) {
	t.Parallel()
	g := newGroup()
	b := serve(t, g)
	b.logIn("vera")
	if code, _, _ := b.do("POST", "/api/v1/query", `{"sql":"`+strings.Repeat("x", maxBody)+`"}`); code != 413 {
		t.Errorf("a body of more than %d bytes: %d", maxBody, code)
	}
	if code, _, _ := b.do("POST", "/api/v1/session", `{"user":"`+strings.Repeat("x", 64)+`","password":""}`); code != 400 {
		t.Errorf("a long name: %d", code)
	}
	g.mu.Lock()
	g.block = make(chan struct{})
	g.mu.Unlock()
	var waiting sync.WaitGroup
	for range maxAtOnce {
		r := b.request("GET", "/api/v1/views", "")
		waiting.Go(func() {
			if resp, err := b.client.Do(r); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	await(t, "queries are under way", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.asked) == maxAtOnce
	})
	if code, _, h := b.do("GET", "/api/v1/status", ""); code != 429 || h.Get("Retry-After") == "" {
		t.Errorf("one request more than %d: %d", maxAtOnce, code)
	}
	close(g.block)
	waiting.Wait()
	for range int(eachRequests.Burst) + 1 {
		if code, _, _ := b.do("GET", "/api/v1/status", ""); code == 429 {
			return
		}
	}
	await(t, "requests are refused for their rate", func() bool {
		code, _, _ := b.do("GET", "/api/v1/status", "")
		return code == 429
	})
}

// TestSessions holds that the number of sessions, their age and their silence have bounds.
func TestSessions(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := newSessions(func() time.Time { return now })
	first, secret, _ := s.open(Account{Principal: console.Principal{User: "vera", May: ddl.MayOperate}}, nil)
	for range roleSessions {
		now = now.Add(time.Second)
		if _, _, ok := s.open(Account{Principal: console.Principal{User: "vera", May: ddl.MayOperate}}, nil); !ok {
			t.Fatal("refused")
		}
	}
	select {
	case <-first.ended:
	default:
		t.Error("the oldest session of the role goes on")
	}
	if s.count() != roleSessions || s.find(secret) != nil {
		t.Errorf("%d sessions", s.count())
	}
	for i := range maxSessions - roleSessions {
		if _, _, ok := s.open(Account{Principal: console.Principal{User: fmt.Sprint(i), May: ddl.MayOperate}}, nil); !ok {
			t.Fatal("refused")
		}
	}
	if _, _, ok := s.open(Account{Principal: console.Principal{User: "one more", May: ddl.MayOperate}}, nil); ok || s.refused()["sessions"] != 1 {
		t.Error("one more session than there may be")
	}
	now = now.Add(idleSession + time.Second)
	n, secret, ok := s.open(Account{Principal: console.Principal{User: "one more", May: ddl.MayOperate}}, nil)
	if !ok || s.count() != 1 {
		t.Errorf("%d sessions after the silence", s.count())
	}
	for range 13 {
		now = now.Add(idleSession - time.Second)
		if leave, ok := s.enter(n); ok {
			leave()
		}
	}
	if s.find(secret) != nil {
		t.Errorf("a session lives longer than %v", lifetime)
	}
}

// TestRoleIsLookedUpAgain holds that a session ends once its role may not log in any more, or has another password.
func TestRoleIsLookedUpAgain(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(g *group){
		"dropped":          func(g *group) { delete(g.may, "vera") },
		"another password": func(g *group) { g.verifiers["vera"] = sha256.Sum256([]byte("another")) },
	} {
		g := newGroup()
		b := serve(t, g)
		b.logIn("vera")
		g.mu.Lock()
		change(g)
		g.mu.Unlock()
		if code, _, _ := b.do("GET", "/api/v1/status", ""); code != 200 {
			t.Errorf("%s, at once: %d", name, code)
		}
		real := time.Now
		b.s.sessions.now = func() time.Time { return real().Add(lookEvery + time.Second) }
		if code, _, _ := b.do("GET", "/api/v1/status", ""); code != 401 {
			t.Errorf("%s, after %v: %d", name, lookEvery, code)
		}
		if b.s.sessions.count() != 0 {
			t.Errorf("%s: the session is still there", name)
		}
	}
}

// TestViewsAreReadOnce holds that many browsers cost as many questions as one.
func TestViewsAreReadOnce(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	asked := 0
	release := make(chan struct{})
	v := newViews(func(context.Context, string) (Table, error) {
		mu.Lock()
		asked++
		mu.Unlock()
		<-release
		return Table{Name: "coterie.replicas"}, nil
	})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, err := v.get(t.Context(), "coterie.replicas"); err != nil {
				t.Error(err)
			}
		})
	}
	close(release)
	all.Wait()
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	v = newViews(func(ctx context.Context, _ string) (Table, error) { return Table{}, ctx.Err() })
	if _, err := v.get(gone, "a"); err == nil {
		t.Error("a request that has ended has an answer")
	}
	if _, err := v.get(t.Context(), "a"); err != nil {
		t.Errorf("the end of one request is the answer to another: %v", err)
	}
}

// reading reads a stream's messages.
type reading struct {
	resp *http.Response
	in   *bufio.Scanner
}

func (b *browser) stream(last string) (*reading, int) {
	b.t.Helper()
	resp, err := b.client.Do(b.request("GET", "/api/v1/events", "", "Accept", "text/event-stream", "Last-Event-ID", last))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = resp.Body.Close() })
	return &reading{resp, bufio.NewScanner(resp.Body)}, resp.StatusCode
}

// until returns the messages up to the first of that kind, as "event id data".
func (r *reading) until(kind string) (all []string) {
	event, id, data := "", "", ""
	for r.in.Scan() {
		name, value, _ := strings.Cut(r.in.Text(), ": ")
		switch name {
		case "event":
			event = value
		case "id":
			id = value
		case "data":
			data = value
		case "":
			if event != "" {
				all = append(all, strings.TrimSpace(event+" "+id+" "+data))
			}
			if event == kind {
				return all
			}
			event, id, data = "", "", ""
		}
	}
	return append(all, "END")
}

// TestStream holds that a stream tells what happens, and resumes after the last event that its reader has.
func TestStream(t *testing.T) {
	t.Parallel()
	g := newGroup()
	b := serve(t, g)
	b.logIn("vera")
	s, _ := b.stream("")
	got := s.until("event")
	if got[0] != "reset  {}" && !strings.HasPrefix(got[0], "reset") {
		t.Errorf("a new stream begins with %q", got)
	}
	if last := got[len(got)-1]; !strings.Contains(last, "n2 was silent") {
		t.Fatalf("the event is %q", last)
	}
	id := strings.Fields(got[len(got)-1])[1]
	_ = s.resp.Body.Close()
	g.add("n2", "2026-11-25T05:00:01Z", int64(8), "leadership", "took over again", nil)
	s, _ = b.stream(id)
	got = s.until("event")
	if strings.Contains(got[0], "reset") || !strings.Contains(got[len(got)-1], "took over again") {
		t.Errorf("the stream was not resumed: %q", got)
	}
	s, _ = b.stream("otherlife-5")
	if got = s.until("event"); !strings.HasPrefix(got[0], "reset") || !strings.Contains(got[1], "n2 was silent") {
		t.Errorf("after another agent's id: %q", got)
	}
	g.mu.Lock()
	g.st.WriteOpen, g.st.Primary = false, ""
	g.mu.Unlock()
	for {
		if got = s.until("status"); strings.Contains(got[len(got)-1], `"write_open":false`) {
			break
		}
		if got[len(got)-1] == "END" {
			t.Fatal("the stream ended before it told of the change")
		}
	}
	b.do("DELETE", "/api/v1/session", "")
	if got = s.until("ended"); !strings.HasPrefix(got[len(got)-1], "ended") {
		t.Errorf("after the logout: %q", got)
	}
}

// TestNumberOfStreams holds that a session, and a node, have a number of streams.
func TestNumberOfStreams(t *testing.T) {
	t.Parallel()
	b := serve(t, newGroup())
	b.logIn("vera")
	for range sessionStreams {
		if _, code := b.stream(""); code != 200 {
			t.Fatalf("refused: %d", code)
		}
	}
	if _, code := b.stream(""); code != 429 {
		t.Errorf("one more of the session: %d", code)
	}
	h := newHub(func() []byte { return nil }, nil)
	for range maxStreams {
		if _, _, _, ok := h.enter("", maxStreams); !ok {
			t.Fatal("refused")
		}
	}
	if _, _, _, ok := h.enter("", maxStreams); ok {
		t.Error("one more stream than a node may have")
	}
}

// TestSlowReaders holds that a reader that does not read loses its stream, and is counted, and that others go on.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	h := newHub(func() []byte { return nil }, nil)
	slow, _, _, _ := h.enter("", maxStreams)
	quick, _, _, _ := h.enter("", maxStreams)
	for range streamQueue + 1 {
		h.send(message("status", "", []byte("{}")))
		<-quick.out
	}
	select {
	case <-slow.slow:
	default:
		t.Error("the slow reader keeps its stream")
	}
	if h.dropped.Load() != 1 || h.open() != 1 {
		t.Errorf("%d dropped, %d open", h.dropped.Load(), h.open())
	}
}

// TestRingIsBounded holds that the events that are kept have a number, and that an id that is too old resets.
func TestRingIsBounded(t *testing.T) {
	t.Parallel()
	h := newHub(nil, nil)
	for i := range maxRing + 10 {
		h.add([]Event{{Node: "n1", At: fmt.Sprintf("%06d", i)}})
	}
	if len(h.ring) != maxRing || len(h.seen) != maxRing {
		t.Errorf("%d events, %d seen", len(h.ring), len(h.seen))
	}
	if _, resumed := h.after(h.life + "-5"); resumed {
		t.Error("resumed after an event that is gone")
	}
	if list, resumed := h.after(h.ring[maxRing-3].ID); !resumed || len(list) != 2 {
		t.Errorf("resumed %v with %d", resumed, len(list))
	}
	if list, resumed := h.after(h.ring[maxRing-1].ID); !resumed || len(list) != 0 {
		t.Errorf("resumed %v with %d", resumed, len(list))
	}
	h.add(h.ring[maxRing-5:])
	if n := len(h.ring); n != maxRing || h.next != maxRing+11 {
		t.Errorf("events that are known were added again: %d", h.next)
	}
}

// await waits for a condition.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// decode reads JSON of an answer.
func decode(t *testing.T, b []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return v
}

func (g *group) Version() string { return "18.1" }
