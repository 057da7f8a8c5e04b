package web

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// TestBodyIsReadFirst holds that a request is served once its whole body is there: a server reads the rest of a body
// before it answers, and without a deadline a body that never ends would keep the connection.
func TestBodyIsReadFirst(t *testing.T) {
	t.Parallel()
	b := serve(t, newGroup())
	for _, rest := range []string{"x", "{}", `{"user":"vera"}`, "]"} {
		if code, text, _ := b.do("POST", "/api/v1/session", `{"user":"vera","password":"right"}`+rest); code != 400 {
			t.Errorf("a login before %q: %d %s", rest, code, text)
		}
	}
	body, end := io.Pipe()
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/api/v1/session", body)
	r.Header.Set("Content-Type", "application/json")
	served := make(chan int)
	go func() {
		w := httptest.NewRecorder()
		b.s.handler.ServeHTTP(w, r)
		served <- w.Code
	}()
	if _, err := io.WriteString(end, `{"user":"vera","password":"right"}`); err != nil {
		t.Fatal(err)
	}
	if n := b.s.sessions.count(); n != 0 {
		t.Errorf("%d sessions before the body has ended", n)
	}
	_ = end.CloseWithError(context.DeadlineExceeded) // as after readTime
	if code := <-served; code != 400 {
		t.Errorf("a body that did not end: %d", code)
	}
}

// TestPlantedCookie holds that a login gives a secret of its own, whatever cookie the browser had, and ends the session
// that this was of.
func TestPlantedCookie(t *testing.T) {
	t.Parallel()
	b := serve(t, newGroup())
	b.cookie = &http.Cookie{Name: b.s.cookieName(), Value: "planted"}
	if code, _ := b.logIn("vera"); code != 200 || b.cookie.Value == "planted" {
		t.Fatalf("login: %d, cookie %q", code, b.cookie.Value)
	}
	first := b.cookie
	if code, _ := b.logIn("olaf"); code != 200 || b.cookie.Value == first.Value || b.s.sessions.count() != 1 {
		t.Errorf("login: %d, %d sessions", code, b.s.sessions.count())
	}
	b.cookie = first
	if code, _, _ := b.do("GET", "/api/v1/status", ""); code != 401 {
		t.Errorf("with the secret of the session before: %d", code)
	}
}

// TestPagesOfOtherPorts holds that a page of another origin cannot use the requests and streams of a session, not even
// one of another port of the same host, to which browsers send the cookie. A link to the page works from everywhere.
func TestPagesOfOtherPorts(t *testing.T) {
	t.Parallel()
	b := serve(t, newGroup())
	b.logIn("vera")
	for site, want := range map[string]int{"": 200, "none": 200, "same-origin": 200, "same-site": 403, "cross-site": 403} {
		for _, path := range []string{"/api/v1/status", "/api/v1/events", "/api/v1/session"} {
			if code, _, _ := b.do("GET", path, "", "Sec-Fetch-Site", site); code != want {
				t.Errorf("GET %s from %q: %d", path, site, code)
			}
		}
		if code, _, _ := b.do("GET", "/", "", "Sec-Fetch-Site", site); code != 200 {
			t.Errorf("the page from %q: %d", site, code)
		}
	}
}

// TestPathsStayInside holds that no path reaches a file beside those of the page, or leads to another host.
func TestPathsStayInside(t *testing.T) {
	t.Parallel()
	b := serve(t, newGroup())
	b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for _, path := range []string{
		"/../routes.go", "/..%2froutes.go", "/%2e%2e/routes.go", "/page/index.html", "/index.html/", "/index.html%00", "/app.js%00.css", "//elsewhere.example/", "//elsewhere.example/%2e%2e",
		"/\\elsewhere.example", "/api/v1/../../openapi.json", "/api/v1/views/..%2f..%2fstatus", "/.", "/%5c%5celsewhere.example/..", "/api/v1/views/coterie.replicas%20WHERE%201=1",
	} {
		code, text, h := b.do("GET", path, "")
		to := h.Get("Location")
		if code == 200 && path != "/." || strings.Contains(string(text), "package web") || strings.HasPrefix(to, "//") || strings.HasPrefix(to, "/\\") || strings.Contains(to, "://") {
			t.Errorf("GET %s: %d, to %q", path, code, to)
		}
	}
	r := b.request("GET", "/", "")
	r.Host = "elsewhere.example"
	resp, err := b.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if text, err := io.ReadAll(resp.Body); err != nil || strings.Contains(string(text)+fmt.Sprint(resp.Header), "elsewhere") {
		t.Errorf("the name in Host is in the answer: %v, %v", resp.Header, err)
	}
}

// TestNamesAreQuoted holds that a name with quotes is a name in the statement that a refusal proposes, and that no name
// becomes a header.
func TestNamesAreQuoted(t *testing.T) {
	t.Parallel()
	g := newGroup()
	name := "x\"; DROP ROLE y --\r\nSet-Cookie: z"
	g.may[name] = ddl.MayNothing
	b := serve(t, g)
	code, text, h := b.do("POST", "/api/v1/session", `{"user":"x\"; DROP ROLE y --\r\nSet-Cookie: z","password":"right"}`)
	if code != 403 || h.Get("Set-Cookie") != "" || !strings.Contains(string(text), `GRANT coterie_viewer TO \"x\"\"; DROP ROLE y`) {
		t.Errorf("%d %v %s", code, h, text)
	}
}

// TestStreamOfALapsedRole holds that a stream ends once its role may not log in any more, also if nothing else is
// asked.
func TestStreamOfALapsedRole(t *testing.T) {
	t.Parallel()
	g := newGroup()
	b := serve(t, g)
	b.s.lookEvery = time.Millisecond
	var later atomic.Int64
	later.Store(int64(lookEvery + time.Second))
	b.s.sessions.now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	b.logIn("vera")
	s, _ := b.stream("")
	g.mu.Lock()
	delete(g.may, "vera")
	g.mu.Unlock()
	later.Store(int64(3 * lookEvery))
	if got := s.until("ended"); !strings.HasPrefix(got[len(got)-1], "ended") {
		t.Errorf("the stream told %q", got)
	}
}

// TestQueriesAtOnce holds that a role, and a node, have a number of queries until their answers are read.
func TestQueriesAtOnce(t *testing.T) {
	t.Parallel()
	q := &queries{of: map[string]int{}}
	var leave []func()
	for i := range maxQueries {
		done, ok := q.enter(fmt.Sprint(i / userQueries))
		if !ok {
			t.Fatalf("query %d is refused", i)
		}
		leave = append(leave, done)
		if i == userQueries-1 {
			if _, ok := q.enter("0"); ok {
				t.Errorf("more than %d queries of a role", userQueries)
			}
		}
	}
	if _, ok := q.enter("one more"); ok {
		t.Errorf("more than %d queries", maxQueries)
	}
	for _, done := range leave {
		done()
	}
	if q.all != 0 || len(q.of) != 0 {
		t.Errorf("left behind: %d, %v", q.all, q.of)
	}
	g := newGroup()
	g.block = make(chan struct{})
	b := serve(t, g)
	b.logIn("vera")
	var waiting sync.WaitGroup
	for range userQueries {
		r := b.request("POST", "/api/v1/query", `{"sql":"SELECT 1"}`)
		waiting.Go(func() {
			if resp, err := b.client.Do(r); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	await(t, "queries are under way", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.asked) == userQueries
	})
	if code, _, h := b.do("POST", "/api/v1/query", `{"sql":"SELECT 1"}`); code != 429 || h.Get("Retry-After") == "" {
		t.Errorf("one more of the role: %d", code)
	}
	close(g.block)
	waiting.Wait()
}

// TestViewersKeepNobodyOut holds that roles which may only look, however many they are, leave places and requests for
// one that may change something.
func TestViewersKeepNobodyOut(t *testing.T) {
	t.Parallel()
	g := newGroup()
	b := serve(t, g)
	viewers := []*session{}
	for i := 0; ; i++ {
		n, _, ok := b.s.sessions.open(Account{Principal: console.Principal{User: fmt.Sprint("viewer ", i/roleSessions), May: ddl.MayLook}}, nil)
		if !ok {
			break
		}
		viewers = append(viewers, n)
	}
	for refused := 0; refused < len(viewers); {
		refused = 0
		for _, n := range viewers {
			if leave, ok := b.s.sessions.enter(n); ok {
				leave()
			} else {
				refused++
			}
		}
	}
	for i := range 2 * int(allAsks.Burst) {
		spend(b.s.deeds.asks, fmt.Sprint("viewer ", i%10), ddl.MayLook)
	}
	for {
		if _, _, _, ok := b.s.hub.enter("", placesFor(ddl.MayLook, maxStreams, keptStreams)); !ok {
			break
		}
	}
	for i := range maxQueries {
		if _, ok := b.s.queries.enter(fmt.Sprint("viewer ", i/userQueries)); !ok {
			t.Fatal("no place for a query")
		}
	}
	if code, _ := b.logIn("olaf"); code != 200 {
		t.Fatalf("a login: %d", code)
	}
	for _, body := range []string{`{"to":"n2","dry_run":true}`, `{"to":"n2"}`} {
		if code, text, _ := b.do("POST", "/api/v1/failover", body); code != 200 {
			t.Errorf("%s: %d %s", body, code, text)
		}
	}
	if _, code := b.stream(""); code != 200 {
		t.Errorf("a stream: %d", code)
	}
	if code, text, _ := (&browser{t: t, s: b.s, at: b.at, client: b.client}).do("POST", "/api/v1/session", `{"user":"vera","password":"right"}`); code != 503 {
		t.Errorf("one more viewer: %d %s", code, text)
	}
}

// TestHangingUpKeepsNoRight holds that a client which leaves at once, so that nobody waits for the answer about its
// role, keeps by that neither its session nor a right that the role has lost, also while the group has no primary.
func TestHangingUpKeepsNoRight(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(b *browser) *http.Request{
		"a look":   func(b *browser) *http.Request { return b.request("GET", "/api/v1/status", "") },
		"a change": func(b *browser) *http.Request { return b.request("POST", "/api/v1/suspend", `{"replica":"n2"}`) },
	} {
		g := newGroup()
		b := serve(t, g)
		b.logIn("olaf")
		real := time.Now
		b.s.sessions.mu.Lock()
		b.s.sessions.now = func() time.Time { return real().Add(2 * lookEvery) }
		b.s.sessions.mu.Unlock()
		g.mu.Lock()
		delete(g.may, "olaf")
		g.st.WriteOpen = false
		g.mu.Unlock()
		ctx, leave := context.WithCancel(t.Context())
		leave()
		b.s.handler.ServeHTTP(httptest.NewRecorder(), ask(b).WithContext(ctx))
		if code, _, _ := b.do("GET", "/api/v1/status", ""); code != 401 {
			t.Errorf("after %s: the session goes on: %d", name, code)
		}
		b.s.awaitRequests()
		if ran := g.statements(); len(ran) != 0 {
			t.Errorf("after %s: %q", name, ran)
		}
	}
}

// TestAnswersAreBounded holds that the rows of a request have a size, and that a request runs one statement.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	b := serve(t, newGroup())
	b.logIn("vera")
	if code, text, _ := b.do("POST", "/api/v1/query", `{"sql":"SELECT large"}`); code != 400 || !strings.Contains(string(text), "54000") {
		t.Errorf("a large answer: %d %.200s", code, text)
	}
	for _, script := range []string{"SELECT 1; SELECT 2", "DECLARE @x int = 1; SELECT @x", "IF 1 = 1 SELECT 1", "PRINT 'x'"} {
		if code, text, _ := b.do("POST", "/api/v1/query", fmt.Sprintf(`{"sql":%q}`, script)); code != 400 || !strings.Contains(string(text), "one statement") {
			t.Errorf("%s: %d %s", script, code, text)
		}
	}
}

// TestStatusDoesNotWaitForEvents holds that a node which does not tell its events delays no change of the status.
func TestStatusDoesNotWaitForEvents(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	doc := `{"epoch":1}`
	h := newHub(func() []byte {
		mu.Lock()
		defer mu.Unlock()
		return []byte(doc)
	}, func(ctx context.Context) ([]Event, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { h.run(ctx) })
	running.Go(func() { h.runEvents(ctx) })
	defer func() { stop(); running.Wait() }()
	s, _, _, _ := h.enter("", maxStreams)
	for !strings.Contains(string(<-s.out), `{"epoch":1}`) {
	}
	mu.Lock()
	doc = `{"epoch":2}`
	mu.Unlock()
	for !strings.Contains(string(<-s.out), `{"epoch":2}`) {
	}
	if h.asking.TryLock() {
		t.Error("the events are not being asked for")
		h.asking.Unlock()
	}
}
