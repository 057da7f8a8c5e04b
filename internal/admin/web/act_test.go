package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/action"
	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
)

// keys makes Idempotency-Keys.
var keys atomic.Int64

// example is a request of a change: the privilege that it needs, and the statement that it is.
type example struct {
	needs     ddl.Privilege
	body      string
	statement string // behind ALTER AVAILABILITY GROUP [g], unless it makes a group
}

var examples = map[string]example{
	"create":      {ddl.MayAdminister, `{"group":"h","replicas":[{"replica":"n1"}]}`, "CREATE AVAILABILITY GROUP [h]\n    FOR REPLICA ON\n        N'n1'"},
	"join":        {ddl.MayAdminister, `{"replica":"n2"}`, "JOIN REPLICA ON N'n2'"},
	"failover":    {ddl.MayOperate, `{"to":"n2"}`, "FAILOVER TO N'n2'"},
	"suspend":     {ddl.MayOperate, `{"replica":"n2"}`, "SUSPEND REPLICA ON N'n2'"},
	"resume":      {ddl.MayOperate, `{"replica":"n2"}`, "RESUME REPLICA ON N'n2'"},
	"seed":        {ddl.MayOperate, `{"replica":"n2"}`, "SEED REPLICA ON N'n2'"},
	"cancel-seed": {ddl.MayOperate, `{"replica":"n2"}`, "CANCEL SEEDING ON N'n2'"},
	"maintenance": {ddl.MayAdminister, `{"on":true,"reason":"it's the disk"}`, "SET (MAINTENANCE = N'it''s the disk')"},
	"options":     {ddl.MayAdminister, `{"replica":"n2","options":{"SESSION_TIMEOUT":5},"secondary_role":{"ALLOW_CONNECTIONS":"NO"}}`, "MODIFY REPLICA ON N'n2' WITH (SESSION_TIMEOUT = 5, SECONDARY_ROLE (ALLOW_CONNECTIONS = NO))"},
	"routing":     {ddl.MayAdminister, `{"replica":"n1","list":[["n2","n3"],["n1"]]}`, "MODIFY REPLICA ON N'n1' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = ((N'n2', N'n3'), N'n1')))"},
	"remove":      {ddl.MayAdminister, `{"replica":"n2","confirm":"n2"}`, "REMOVE REPLICA ON N'n2'"},
}

// mays are the privileges of the users of tests.
var mays = map[string]ddl.Privilege{"vera": ddl.MayLook, "olaf": ddl.MayOperate, "anna": ddl.MayAdminister}

// text returns the statement of the change.
func (x example) text() string {
	if strings.HasPrefix(x.statement, "CREATE ") {
		return x.statement
	}
	return "ALTER AVAILABILITY GROUP [g] " + x.statement
}

func (x example) want(user string) int {
	switch may, known := mays[user]; {
	case !known:
		return 401
	case may < x.needs:
		return 403
	}
	return 200
}

func (g *group) Execute(ctx context.Context, who console.Principal, s ddl.Statement) (console.Result, error) {
	g.mu.Lock()
	g.ran = append(g.ran, fmt.Sprintf("%s by %s %s %s", s, who.Via, who.User, who.From))
	refused := g.refused
	g.mu.Unlock()
	if err := g.wait(ctx); err != nil {
		return console.Result{}, err
	}
	return console.Result{Tag: s.Verb(), Notices: []console.Notice{{Severity: "NOTICE", Message: "it has its effect"}}}, refused
}

// wait waits until what is held goes on, or panics.
func (g *group) wait(ctx context.Context) error {
	g.mu.Lock()
	hold, panics := g.hold, g.panics
	g.mu.Unlock()
	if panics {
		panic("a mistake")
	}
	if hold == nil {
		return nil
	}
	select {
	case <-hold:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *group) Denied(who console.Principal, s ddl.Statement, err *console.Error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.denied = append(g.denied, fmt.Sprintf("%s by %s %s %s: %s", s, who.Via, who.User, who.From, err.State))
}

func (g *group) try(_ context.Context, r api.FailoverRequest) (api.FailoverResult, error) {
	if !r.DryRun {
		return api.FailoverResult{}, errors.New("it would have been carried out")
	}
	return api.FailoverResult{From: "n1", To: r.To, Epoch: 7, DryRun: true, Sessions: []ag.SessionMove{{Replica: "n1", User: "app"}, {Replica: "n1", User: "app", Why: "it has a temporary table"}, {Replica: "n1", Why: "busy", Waits: true}}}, nil
}

func (g *group) token(ctx context.Context, r api.TokenRequest) (api.TokenResult, error) {
	if err := g.wait(ctx); err != nil {
		return api.TokenResult{}, err
	}
	return api.TokenResult{Token: "secret", Role: r.Role, Command: "coterie join secret", Expires: time.Now().Add(r.TTL)}, nil
}

func (g *group) note(who console.Principal, operation string, _ time.Duration, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.noted = append(g.noted, fmt.Sprintf("%s by %s %s %s: %v", operation, who.Via, who.User, who.From, err))
}

// TestTokensInABrowser holds that only an administrator whose password was given lately gets a join token, that it is
// told once, and that the audit has it without the token.
func TestTokensInABrowser(t *testing.T) {
	t.Parallel()
	const body = `{"role":"replica","minutes":15}`
	g := newGroup()
	b := serve(t, g)
	b.logIn("olaf")
	if code, text, _ := b.do("POST", "/api/v1/token", body); code != 403 || strings.Contains(string(text), "secret") {
		t.Errorf("by an operator: %d %s", code, text)
	}
	b.logIn("anna")
	for _, bad := range []string{`{}`, `{"role":"replica"}`, `{"role":"agent","minutes":1}`, `{"role":"replica","minutes":1441}`, `{"role":"replica","minutes":18014398509481985}`, `{"role":"replica","minutes":1,"x":1}`} {
		if code, text, _ := b.do("POST", "/api/v1/token", bad); code != 400 {
			t.Errorf("%s: %d %s", bad, code, text)
		}
	}
	if code, text, _ := b.do("POST", "/api/v1/token", body, "Idempotency-Key", "one"); code != 200 || !strings.Contains(string(text), "coterie join secret") {
		t.Errorf("by an administrator: %d %s", code, text)
	}
	if code, text, _ := b.do("POST", "/api/v1/token", body, "Idempotency-Key", "one"); code != 409 || strings.Contains(string(text), "secret") {
		t.Errorf("once more: %d %s", code, text)
	}
	if code, text, _ := b.do("GET", "/api/v1/operations", ""); code != 200 || strings.Contains(string(text), "secret") {
		t.Errorf("the token is kept: %d %s", code, text)
	}
	if want := []string{"token for a replica, for 15m0s by API olaf 127.0.0.1: permission denied: a join token needs the role coterie_admin", "token for a replica, for 15m0s by API anna 127.0.0.1: <nil>"}; !slices.Equal(g.noted, want) {
		t.Errorf("noted %q", g.noted)
	}
	real := time.Now
	b.s.sessions.mu.Lock()
	b.s.sessions.now = func() time.Time { return real().Add(proofLife + time.Second) }
	b.s.sessions.mu.Unlock()
	if code, text, _ := b.do("POST", "/api/v1/token", body); code != 403 || strings.Contains(string(text), "secret") {
		t.Errorf("without the password: %d %s", code, text)
	}
	if n := len(g.noted); n != 3 || !strings.HasSuffix(g.noted[2], errProof.Error()) {
		t.Errorf("noted %q", g.noted)
	}
}

func (g *group) statements() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.ran)
}

// TestWhoMayChangeWhat holds which role may ask for which change: without a session, or with a role that has not the
// privilege, nothing reaches the node, and what was denied is told for the audit. An answer has the statement that a
// change is.
func TestWhoMayChangeWhat(t *testing.T) {
	t.Parallel()
	if names := action.Names(); len(names) != len(examples) {
		t.Errorf("the changes are %v", names)
	}
	for user := range map[string]bool{"": true, "vera": true, "olaf": true, "anna": true} {
		for name, x := range examples {
			g := newGroup()
			b := serve(t, g)
			if user != "" {
				b.logIn(user)
			}
			code, text, _ := b.do("POST", "/api/v1/"+name, x.body)
			if code != x.want(user) {
				t.Errorf("%s by %q: %d, want %d: %s", name, user, code, x.want(user), text)
			}
			want := x.text()
			var doc struct {
				Statement, Message string
				Number             *int
			}
			if err := json.Unmarshal(text, &doc); err != nil || code != 401 && (doc.Statement != want || doc.Message == "" || doc.Number == nil) {
				t.Errorf("%s by %q: %v, the answer is %s", name, user, err, text)
			}
			ran, denied := g.statements(), g.denied
			switch code {
			case 200:
				if len(ran) != 1 || ran[0] != want+" by API "+user+" 127.0.0.1" || len(denied) != 0 {
					t.Errorf("%s by %q: %q ran, %q was denied", name, user, ran, denied)
				}
			case 403:
				if len(ran) != 0 || len(denied) != 1 || denied[0] != want+" by API "+user+" 127.0.0.1: 42501" {
					t.Errorf("%s by %q: %q ran, %q was denied", name, user, ran, denied)
				}
			default:
				if len(ran)+len(denied) != 0 {
					t.Errorf("%s by %q: %q ran, %q was denied", name, user, ran, denied)
				}
			}
		}
	}
}

// TestLostRights holds that a change looks at what the role may do now, and not when it logged in; that a role without
// the login, or with another password, has its session ended; and that nothing is changed where nobody can be asked,
// unless the group has no primary.
func TestLostRights(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		change func(g *group)
		want   int
		ended  bool
	}{
		"as before":        {func(*group) {}, 200, false},
		"a viewer now":     {func(g *group) { g.may["olaf"] = ddl.MayLook }, 403, false},
		"no role":          {func(g *group) { delete(g.may, "olaf") }, 401, true},
		"another password": {func(g *group) { g.verifiers["olaf"] = [32]byte{1} }, 401, true},
		"not known":        {func(g *group) { g.unknown = errors.New("no replica answers") }, 503, false},
		"not known, and no primary": {func(g *group) {
			g.unknown, g.st.WriteOpen = errors.New("no replica answers"), false
		}, 200, false},
	} {
		g := newGroup()
		b := serve(t, g)
		b.logIn("olaf")
		g.mu.Lock()
		x.change(g)
		g.mu.Unlock()
		code, text, _ := b.do("POST", "/api/v1/failover", `{"to":"n2"}`)
		if code != x.want || (len(g.statements()) == 1) != (x.want == 200) || (b.s.sessions.count() == 0) != x.ended {
			t.Errorf("%s: %d %s, ran %q, %d sessions", name, code, text, g.statements(), b.s.sessions.count())
		}
	}
}

// TestForeignChanges holds that a page of another origin, or a form of any page, can ask for no change with the cookie
// of somebody who is logged in.
func TestForeignChanges(t *testing.T) {
	t.Parallel()
	g := newGroup()
	b := serve(t, g)
	b.logIn("anna")
	for name, x := range map[string]struct {
		headers []string
		want    int
	}{
		"another site":             {[]string{"Sec-Fetch-Site", "cross-site", "Origin", "https://elsewhere.example"}, 403},
		"another port of the host": {[]string{"Sec-Fetch-Site", "same-site", "Origin", "https://127.0.0.1:1"}, 403},
		"an old browser":           {[]string{"Origin", "https://elsewhere.example"}, 403},
		"no origin at all":         {[]string{"Origin", "null"}, 403},
		"clear text":               {[]string{"Origin", strings.Replace(b.at, "https", "http", 1)}, 403},
		"an address bar":           {[]string{"Sec-Fetch-Site", "none"}, 403},
		"without the header":       {[]string{"Idempotency-Key", ""}, 400},
		"a header that is none":    {[]string{"Idempotency-Key", "a b"}, 400},
		"a long one":               {[]string{"Idempotency-Key", strings.Repeat("k", maxKey+1)}, 400},
		"a form":                   {[]string{"Content-Type", "text/plain"}, 415},
		"a form with files":        {[]string{"Content-Type", "multipart/form-data; boundary=x"}, 415},
		"this page":                {[]string{"Sec-Fetch-Site", "same-origin", "Origin", b.at}, 200},
		"a program":                {nil, 200},
	} {
		before := len(g.statements())
		code, text, _ := b.do("POST", "/api/v1/suspend", `{"replica":"n2"}`, x.headers...)
		if code != x.want || (len(g.statements()) > before) != (x.want == 200) {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
	if code, _, _ := b.do("GET", "/api/v1/failover", ""); code == 200 {
		t.Error("a link makes a change")
	}
}

// TestRepeatedChanges holds that a change that is asked for again with the same key is made once, also while it is
// under way, and that a key is of one role and one change.
func TestRepeatedChanges(t *testing.T) {
	t.Parallel()
	g := newGroup()
	b := serve(t, g)
	b.logIn("olaf")
	ask := func(b *browser, name, body, key string) (int, Deed) {
		code, text, _ := b.do("POST", "/api/v1/"+name, body, "Idempotency-Key", key)
		var d Deed
		if err := json.Unmarshal(text, &d); err != nil {
			t.Errorf("%v: %s", err, text)
		}
		return code, d
	}
	g.mu.Lock()
	g.hold = make(chan struct{})
	g.mu.Unlock()
	var both sync.WaitGroup
	docs := make([]Deed, 3)
	for i := range docs {
		r := b.request("POST", "/api/v1/suspend", `{"replica":"n2"}`, "Idempotency-Key", "one")
		both.Go(func() {
			resp, err := b.client.Do(r)
			if err == nil {
				_ = json.NewDecoder(resp.Body).Decode(&docs[i])
				_ = resp.Body.Close()
			}
		})
	}
	await(t, "the change is under way", func() bool { return len(g.statements()) == 1 })
	close(g.hold)
	both.Wait()
	if len(g.statements()) != 1 || docs[0].ID == "" || docs[0].ID != docs[1].ID || docs[1].ID != docs[2].ID || docs[2].State != deedDone {
		t.Errorf("%d statements ran, the answers are %+v", len(g.statements()), docs)
	}
	if code, d := ask(b, "suspend", `{"replica":"n2"}`, "one"); code != 200 || d.ID != docs[0].ID || len(g.statements()) != 1 {
		t.Errorf("again: %d %+v, %d ran", code, d, len(g.statements()))
	}
	for _, x := range [][2]string{{"suspend", `{"replica":"n3"}`}, {"resume", `{"replica":"n2"}`}} {
		if code, _ := ask(b, x[0], x[1], "one"); code != 422 {
			t.Errorf("%s %s with the key of another change: %d", x[0], x[1], code)
		}
	}
	anna := &browser{t: t, s: b.s, at: b.at, client: b.client}
	anna.logIn("anna")
	if code, d := ask(anna, "resume", `{"replica":"n2"}`, "one"); code != 200 || d.ID == docs[0].ID || len(g.statements()) != 2 {
		t.Errorf("the same key of another role: %d %+v", code, d)
	}
	g.mu.Lock()
	g.refused = &console.Error{State: "55000", Number: 41142, Message: "n2 is not SYNCHRONIZED", Hint: "wait"}
	g.mu.Unlock()
	for range 2 {
		if code, d := ask(b, "failover", `{"to":"n2"}`, "two"); code != 409 || d.Number != 41142 || d.Message != "n2 is not SYNCHRONIZED" || d.Error.Hint != "wait" || len(g.statements()) != 3 {
			t.Errorf("a refusal: %d %+v", code, d)
		}
	}
	if code, _, _ := b.do("GET", "/api/v1/operations/"+docs[0].ID, ""); code != 200 {
		t.Errorf("a change that has ended: %d", code)
	}
}

// TestChangesAreBounded holds how many changes a role and a node have at once, how fast they may come, and how many are
// remembered.
func TestChangesAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Now()
	x := newDeeds(func() time.Time { return now })
	end := func(d *deed) {
		d.doc.Ended = now
		close(d.done)
	}
	var open []*deed
	for i := range maxRunning {
		d, _, err := x.begin(Deed{User: fmt.Sprint(i / roleRunning)}, fmt.Sprint(i), [32]byte{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if open = append(open, d); i == roleRunning-1 {
			if _, _, err := x.begin(Deed{User: "0"}, "more", [32]byte{}, 0); err != errTooMany {
				t.Errorf("one more of the role: %v", err)
			}
		}
	}
	if _, _, err := x.begin(Deed{User: "another"}, "k", [32]byte{}, 0); err != errTooMany {
		t.Errorf("one more of all: %v", err)
	}
	for _, d := range open {
		end(d)
	}
	fast := 0
	for i := range 2 * int(eachDeeds.Burst) {
		d, _, err := x.begin(Deed{User: "quick"}, fmt.Sprint(i), [32]byte{}, 0)
		if err == errTooFast {
			fast++
			continue
		}
		end(d)
	}
	if fast != int(eachDeeds.Burst) {
		t.Errorf("%d of %d were refused", fast, 2*int(eachDeeds.Burst))
	}
	for i := range 3 * maxDeeds {
		d, _, err := x.begin(Deed{User: fmt.Sprint("role ", i%10)}, fmt.Sprint(i), [32]byte{}, time.Duration(i)*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		end(d)
	}
	if n := len(x.list); n > maxDeeds {
		t.Errorf("%d are remembered", n)
	}
	for i := range 2 * roleDeeds {
		d, _, err := x.begin(Deed{User: "one"}, fmt.Sprint(i), [32]byte{}, time.Duration(1000+i)*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		end(d)
	}
	mine := 0
	for _, d := range x.list {
		if d.user == "one" {
			mine++
		}
	}
	if mine > roleDeeds {
		t.Errorf("%d of one role are remembered", mine)
	}
	now = now.Add(deedLife + time.Second)
	if n := len(x.all()); n != 0 {
		t.Errorf("%d are remembered for ever", n)
	}
}

// TestQuestionsAboutRolesAreBounded holds that a role which may change nothing cannot have itself looked up as often as
// it sends requests.
func TestQuestionsAboutRolesAreBounded(t *testing.T) {
	t.Parallel()
	g := newGroup()
	b := serve(t, g)
	b.logIn("vera")
	got := map[int]int{}
	for range int(eachAsks.Burst) + 10 {
		code, _, _ := b.do("POST", "/api/v1/suspend", `{"replica":"n2"}`)
		got[code]++
	}
	if got[429] == 0 || got[403] < int(eachAsks.Burst) || len(g.denied) != got[403] {
		t.Errorf("%v, %d denied", got, len(g.denied))
	}
}

// TestRiskyChanges holds that a change which may lose commits or a member repeats its target's name, and needs the
// password once more where that was given long ago: a stolen cookie is not enough.
func TestRiskyChanges(t *testing.T) {
	t.Parallel()
	g := newGroup()
	b := serve(t, g)
	b.logIn("anna")
	for _, body := range []string{`{"to":"n2","allow_data_loss":true}`, `{"to":"n2","allow_data_loss":true,"confirm":"n3"}`} {
		if code, text, _ := b.do("POST", "/api/v1/failover", body); code != 409 {
			t.Errorf("%s: %d %s", body, code, text)
		}
	}
	force := `{"to":"n2","allow_data_loss":true,"confirm":"n2"}`
	real := time.Now
	b.s.sessions.mu.Lock()
	b.s.sessions.now = func() time.Time { return real().Add(proofLife + time.Second) }
	b.s.sessions.mu.Unlock()
	for name, body := range map[string]string{"failover": force, "remove": examples["remove"].body} {
		if code, text, _ := b.do("POST", "/api/v1/"+name, body); code != 403 || !strings.Contains(string(text), "28000") {
			t.Errorf("%s without the password: %d %s", name, code, text)
		}
	}
	if n := len(g.noted); n != 2 || !strings.HasPrefix(g.noted[0], "ALTER AVAILABILITY GROUP [g] ") || !strings.HasSuffix(g.noted[0], errProof.Error()) {
		t.Errorf("the audit has %q", g.noted)
	}
	if code, text, _ := b.do("POST", "/api/v1/suspend", `{"replica":"n2"}`); code != 200 {
		t.Errorf("a change without that risk: %d %s", code, text)
	}
	if code, _, _ := b.do("POST", "/api/v1/session/proof", `{"password":"wrong"}`); code != 401 {
		t.Errorf("a wrong password: %d", code)
	}
	if code, _, _ := b.do("POST", "/api/v1/failover", force); code != 403 {
		t.Errorf("after a wrong password: %d", code)
	}
	if code, text, _ := b.do("POST", "/api/v1/session/proof", `{"password":"right"}`); code != 200 {
		t.Errorf("the password: %d %s", code, text)
	}
	if code, text, _ := b.do("POST", "/api/v1/failover", force); code != 200 || !strings.Contains(string(text), "FORCE_FAILOVER_ALLOW_DATA_LOSS TO N'n2'") {
		t.Errorf("with the password: %d %s", code, text)
	}
}

// TestDryRun holds that a failover that is tried changes nothing, needs the role that the failover needs, and says what
// would become of the sessions.
func TestDryRun(t *testing.T) {
	t.Parallel()
	g := newGroup()
	b := serve(t, g)
	b.logIn("vera")
	if code, text, _ := b.do("POST", "/api/v1/failover", `{"to":"n2","dry_run":true}`); code != 403 {
		t.Errorf("by a viewer: %d %s", code, text)
	}
	b.logIn("olaf")
	code, text, _ := b.do("POST", "/api/v1/failover", `{"to":"n2","dry_run":true}`)
	var trial Trial
	if err := json.Unmarshal(text, &trial); code != 200 || err != nil || trial.Sessions != 1 || trial.Ends != 1 || trial.Waits != 1 || len(trial.Ending) != 1 || trial.From != "n1" || trial.Message == "" {
		t.Errorf("%d %s %v", code, text, err)
	}
	if code, text, _ := b.do("POST", "/api/v1/failover", `{"to":"n2","dry_run":true,"allow_data_loss":true}`); code != 200 || !strings.Contains(string(text), "is lost") {
		t.Errorf("a forced one: %d %s", code, text)
	}
	if ran := g.statements(); len(ran) != 0 {
		t.Errorf("ran %q", ran)
	}
}

// TestSteps holds the steps of a failover by what a node knows of the group, and that the streams are told of them.
func TestSteps(t *testing.T) {
	t.Parallel()
	g := newGroup()
	g.st.Replicas = append(g.st.Replicas, api.Replica{Name: "n2"})
	g.hold = make(chan struct{})
	b := serve(t, g)
	b.logIn("olaf")
	s, _ := b.stream("")
	s.until("status")
	var asked sync.WaitGroup
	r := b.request("POST", "/api/v1/failover", `{"to":"n2"}`)
	asked.Go(func() {
		if resp, err := b.client.Do(r); err == nil {
			_ = resp.Body.Close()
		}
	})
	set := func(change func(st *api.Status)) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.st.Replicas = slices.Clone(g.st.Replicas)
		change(&g.st)
	}
	at := func(step string) {
		t.Helper()
		for {
			got := s.until("operation")
			_, doc, _ := strings.Cut(got[len(got)-1], " ")
			var d Deed
			if err := json.Unmarshal([]byte(strings.TrimSpace(doc)), &d); err != nil {
				t.Fatalf("%v: %q", err, got)
			}
			reached := ""
			for _, x := range d.Steps {
				if !x.At.IsZero() {
					reached = x.Name
				}
			}
			if reached == step {
				return
			}
		}
	}
	at(stepAsked)
	set(func(st *api.Status) { st.Operation, st.Replicas[0].Progress = "planned to n2", "draining" })
	at(stepHand)
	set(func(st *api.Status) { st.Epoch, st.Phase, st.Primary, st.WriteOpen = 8, ag.PhasePromote, "n2", false })
	at(stepPromote)
	set(func(st *api.Status) { st.Phase = ag.PhaseLead })
	at(stepLead)
	set(func(st *api.Status) { st.WriteOpen = true })
	at(stepOpen)
	close(g.hold)
	asked.Wait()
}

// TestChangesAreToldWhole holds that everybody who asks about a change that has just been asked for is told what it is.
func TestChangesAreToldWhole(t *testing.T) {
	t.Parallel()
	g := newGroup()
	g.hold = make(chan struct{})
	b := serve(t, g)
	b.logIn("anna")
	var asked sync.WaitGroup
	for path, body := range map[string]string{"/api/v1/token": `{"role":"replica","minutes":15}`, "/api/v1/suspend": `{"replica":"n2"}`} {
		r := b.request("POST", path, body)
		asked.Go(func() {
			if resp, err := b.client.Do(r); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	await(t, "both are under way", func() bool { return len(b.s.deeds.all()) == 2 })
	var all []Deed
	_, text, _ := b.do("GET", "/api/v1/operations", "")
	if err := json.Unmarshal(text, &all); err != nil || len(all) != 2 {
		t.Errorf("%v: %s", err, text)
	}
	for _, d := range all {
		if d.ID == "" || d.State != deedRunning || d.Statement == "" || d.Message == "" || d.Change == "" || d.User != "anna" || d.Began.IsZero() {
			t.Errorf("%+v", d)
		}
	}
	close(g.hold)
	asked.Wait()
}

// TestPanicsOfChanges holds that a change which panics ends: it keeps neither its place nor those who wait for it.
func TestPanicsOfChanges(t *testing.T) {
	t.Parallel()
	g := newGroup()
	g.panics = true
	b := serve(t, g)
	b.logIn("anna")
	for range roleRunning + 1 {
		for path, body := range map[string]string{"/api/v1/token": `{"role":"replica","minutes":15}`, "/api/v1/suspend": `{"replica":"n2"}`} {
			if code, text, _ := b.do("POST", path, body); code != 500 || !strings.Contains(string(text), "XX000") {
				t.Errorf("%s: %d %s", path, code, text)
			}
		}
	}
	if all := b.s.deeds.all(); len(all) != 2*(roleRunning+1) || all[0].State != deedFailed {
		t.Errorf("%+v", all)
	}
}

// TestChangesAtTheEnd holds that a change for which the server's end left no time is not told of as one under way.
func TestChangesAtTheEnd(t *testing.T) {
	t.Parallel()
	b := serve(t, newGroup())
	d, _, refused := b.s.deeds.begin(Deed{Change: "suspend", User: "olaf"}, "k", [32]byte{}, 0)
	if refused != nil {
		t.Fatal(refused)
	}
	b.s.awaitRequests()
	b.s.start(t.Context(), d, nil, func(context.Context) (console.Result, error) {
		t.Error("it began")
		return console.Result{}, nil
	})
	w := httptest.NewRecorder()
	b.s.answerDeed(w, httptest.NewRequestWithContext(t.Context(), "POST", "/", nil), d)
	if w.Code != http.StatusServiceUnavailable || len(b.s.deeds.all()) != 0 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestChangeOutlivesItsRequest holds that a change goes on when the browser has gone, and ends with the server.
func TestChangeOutlivesItsRequest(t *testing.T) {
	t.Parallel()
	g := newGroup()
	g.hold = make(chan struct{})
	b := serve(t, g)
	b.logIn("olaf")
	ctx, leave := context.WithCancel(t.Context())
	r := b.request("POST", "/api/v1/failover", `{"to":"n2"}`).WithContext(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if resp, err := b.client.Do(r); err == nil {
			_ = resp.Body.Close()
		}
	}()
	await(t, "the change is under way", func() bool { return len(g.statements()) == 1 })
	leave()
	<-gone
	if all := b.s.deeds.all(); len(all) != 1 || all[0].State != deedRunning {
		t.Errorf("%+v", all)
	}
	b.s.awaitRequests()
	if all := b.s.deeds.all(); len(all) != 1 || all[0].State != deedFailed {
		t.Errorf("after the end of the server: %+v", all)
	}
	if code, _, _ := b.do("POST", "/api/v1/suspend", `{"replica":"n2"}`); code != http.StatusServiceUnavailable {
		t.Errorf("a change of a server that has ended: %d", code)
	}
}
