package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/node/coverage"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/postgres/replication"
)

// TestKindsOfEvents holds that coterie.yaml may name each kind of event that there is, and no other.
func TestKindsOfEvents(t *testing.T) {
	t.Parallel()
	kinds := map[string]bool{"link": true, "statement": true}
	for _, k := range eventKinds {
		kinds[k] = true
	}
	for _, k := range config.EventKinds() {
		if !kinds[k] {
			t.Errorf("no event is of the kind %s", k)
		}
		delete(kinds, k)
	}
	if len(kinds) > 0 {
		t.Errorf("no receiver can ask for %v", kinds)
	}
}

// TestReceiversThatFail holds that the judgement of the group has the receivers of this node's events that take none.
func TestReceiversThatFail(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.untold = []string{"the webhook pager has taken no event for 6m0s"}
	if !slices.ContainsFunc(b.Status().Availability.Problems, func(p availability.Problem) bool { return p.Finding == b.untold[0] && p.Target == "a" }) {
		t.Errorf("%+v", b.Status().Availability.Problems)
	}
}

// TestEstimatesOutliveASilence holds that what estimates need of a node's log stays for ten seconds where its server,
// or the node, does not answer any more, and not for longer.
func TestEstimatesOutliveASilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		then, silent := time.Now(), false
		b.server.facts = postgres.ServerFacts{Flush: 1200, Replay: 1100, Commit: &then}
		b.calls["report"] = func(_ context.Context, to ag.ReplicaID, _ any) (any, error) {
			if silent || to != "b" {
				return nil, errTest
			}
			return catalog.Node{Server: ag.ServerRecovery, Replay: 1000, Commit: &then, LogRate: 512}, nil
		}
		has := func(want bool) {
			t.Helper()
			f := b.Facts(t.Context())
			for id, replay := range map[ag.ReplicaID]ag.LSN{"a": 1100, "b": 1000} {
				n := f.Nodes[id]
				if (n.Replay == replay) != want || (n.Commit != nil) != want || (n.Stale > 0) != (want && silent) || id == "b" && ((n.LogRate == 512) != want || n.Connected == silent) {
					t.Errorf("%s: %+v, want what was said: %v", id, n, want)
				}
			}
			if n := f.Nodes["c"]; n.Commit != nil || n.Replay != 0 {
				t.Errorf("c: %+v", n)
			}
		}
		has(true)
		silent, b.server.facts, b.server.err = true, postgres.ServerFacts{}, errTest
		time.Sleep(recentFor / 2)
		has(true)
		time.Sleep(recentFor / 2)
		has(false)
	})
}

// TestReport holds what a node says of itself, as the primary, as a secondary and as a witness.
func TestReport(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.server.facts = postgres.ServerFacts{Flush: 1200, Replay: 0, Databases: []postgres.Database{{OID: 5, Name: "shop"}}}
	b.down.streams = []replication.Stream{{Member: "b", Streaming: true, Flush: 1100, Apply: 1050, Sent: 1150, LastSent: time.Nanosecond}, {Member: "c"}}
	b.listener.sessions = []listener.SessionInfo{{ID: 1, User: "ann"}, {ID: 2, Relayed: true}}
	b.listener.stats.FellBack, b.listener.stats.LastMinute = 3, []listener.Second{{Readers: 4, Routed: 4}}
	n := b.Report(t.Context())
	if n.Console != "db1:8443" || !n.Certificates["node"].Equal(time.Unix(99, 0)) {
		t.Errorf("the console is at %q, the certificates end at %v", n.Console, n.Certificates)
	}
	if !n.Connected || n.Role != ag.RolePrimary || !n.Open || n.Because != "all is well" || n.Lease <= 0 || n.Uptime != time.Minute || n.Position.LSN != 1200 ||
		len(n.Databases) != 1 || len(n.Seedings) != 1 || len(n.Links) != 1 || n.Commits == nil || n.Commits.Waits != 4 || n.FellBack != 3 || len(n.Readers) != 1 || n.Routes == nil || len(n.Places) != 1 {
		t.Errorf("the primary: %+v", n)
	}
	if len(n.Streams) != 1 || n.Streams[0].Flush != 1100 || n.Streams[0].Apply != 1050 || n.Streams[0].Sent != 1150 || n.Streams[0].Idle <= 0 {
		t.Errorf("streams: %+v", n.Streams)
	}
	if len(n.Sessions) != 1 || n.Sessions[0].User != "ann" {
		t.Errorf("sessions: %+v", n.Sessions)
	}
	span := coverage.Span{Looks: 2, Sessions: 8, Open: 4, Node: coverage.Share{Kept: 6, Not: map[string]int{"x": 2}}, Replayed: coverage.Share{Kept: 1}}
	b.Coverage = fakeCoverage{Hours: []coverage.Span{span}, Owners: []coverage.Owned{{Owner: coverage.Owner{Application: "shop", User: "app"}, Span: span}}}
	n = b.Report(t.Context())
	if c := n.Coverage; len(c) != 1 || c[0].Sessions != 8 || c[0].NodeLoss.Kept != 6 || c[0].NodeLoss.Why != "x" || c[0].Open != 4 || c[0].Replayed.Kept != 1 {
		t.Errorf("coverage: %+v", c)
	}
	if o := n.Owners; len(o) != 1 || o[0].Application != "shop" || o[0].User != "app" || o[0].Sessions != 8 {
		t.Errorf("coverage by application: %+v", o)
	}
	b.listener.sessions = make([]listener.SessionInfo, maxShown+7)
	b.agent.view.Record.Epoch.Leader, b.agent.view.Local.Server, b.up.status.Connected = "b", ag.ServerRecovery, true
	b.server.facts.Flush, b.server.facts.Replay = 900, 850 // the loop saw more than that
	if n := b.Report(t.Context()); n.Role != ag.RoleSecondary || !n.Streaming || n.Lease != 0 || n.Position.LSN != 1000 || n.Replay != 850 || len(n.Sessions) != maxShown {
		t.Errorf("a secondary: %+v, %d sessions", n.Position, len(n.Sessions))
	}
	b.server.err = errTest
	if n := b.Report(t.Context()); n.Position.LSN != 1000 || len(n.Databases) > 0 {
		t.Errorf("a server that does not answer: %+v", n)
	}
	b.witness()
	if n := b.Report(t.Context()); n.Links != nil || n.Commits != nil || n.Seedings != nil || n.Sessions != nil || n.Routes == nil {
		t.Errorf("a witness: %+v", n)
	}
	b.agent.view = nil
	if n := b.Report(t.Context()); !n.Connected || n.Role != "" {
		t.Errorf("before the first turn: %+v", n)
	}
}

// TestReportRates holds that a rate is taken over more than a second, that it stays where nothing moves, and that a
// pause of more than a minute gives none.
func TestReportRates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		report := func(at ag.LSN, after time.Duration) (log, stream float64) {
			time.Sleep(after)
			b.server.facts.Flush = at
			b.down.streams = []replication.Stream{{Member: "b", Streaming: true, Sent: at}}
			n := b.Report(t.Context())
			return n.LogRate, n.Streams[0].Rate
		}
		for _, step := range []struct {
			at    ag.LSN
			after time.Duration
			want  float64
		}{
			{10_000, 0, 0},
			{12_000, 500 * time.Millisecond, 0}, // too soon
			{30_000, 1500 * time.Millisecond, 10_000},
			{30_000, 10 * time.Second, 10_000}, // nothing moved
			{80_000, 10 * time.Second, 5_000},
			{900_000, 2 * time.Minute, 5_000}, // too long ago
		} {
			if log, stream := report(step.at, step.after); log != step.want || stream != step.want {
				t.Errorf("at %d: %v and %v a second, want %v", step.at, log, stream, step.want)
			}
		}
	})
}

// TestFacts holds that every member that answers tells for itself, and that of the others what they published last is
// shown, within a bound.
func TestFacts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		b.calls["report"] = func(ctx context.Context, to ag.ReplicaID, _ any) (any, error) {
			if to == "w" { // hangs
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return catalog.Node{Role: ag.RoleSecondary, Because: "told by " + string(to)}, nil
		}
		began := time.Now()
		f := b.Facts(t.Context())
		if f.Self != "a" || f.Group.Name != "DemoAG" || f.Profile != "default" || f.Primary != "a" || !f.WriteOpen || !f.Quorum || f.Version != "15.9" || time.Since(began) != reportLimit {
			t.Errorf("%+v after %v", f, time.Since(began))
		}
		if n := f.Nodes["a"]; !n.Connected || n.Role != ag.RolePrimary {
			t.Errorf("a: %+v", n)
		}
		if n := f.Nodes["b"]; !n.Connected || n.Because != "told by b" {
			t.Errorf("b: %+v", n)
		}
		for _, id := range []ag.ReplicaID{"c", "w"} {
			if n := f.Nodes[id]; n.Connected || n.Role != ag.RoleResolving || n.Because != "does not answer" {
				t.Errorf("%s: %+v", id, n)
			}
		}
		if f.Nodes["c"].Position.LSN != 500 {
			t.Errorf("c: %+v", f.Nodes["c"])
		}
	})
}

// TestFactsOfAPrimaryThatDied: its routes say that it takes writes, and it does not answer.
func TestFactsOfAPrimaryThatDied(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.clients.routes = &ag.Routes{Primary: "c", WriteOpen: true}
	if f := b.Facts(t.Context()); f.Primary != "" || f.WriteOpen {
		t.Errorf("primary %q, takes writes %v", f.Primary, f.WriteOpen)
	}
	b.agent.view, b.agent.snap, b.clients.routes = nil, nil, nil
	if f := b.Facts(t.Context()); len(f.Group.Replicas) != 4 || f.Quorum || f.Primary != "" {
		t.Errorf("before the first turn: %+v", f)
	}
}

// TestFactsWithoutAQuorum holds that the views of a node which has had no quorum for longer than a lease lasts name no
// primary: that one is fenced, though its agent answers and the routes still lead to it.
func TestFactsWithoutAQuorum(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.clients.routes = &ag.Routes{Primary: "b", WriteOpen: true}
	v := b.agent.view
	v.Record.Epoch.Leader, v.Local.Server, v.Profile.Observer, v.Silence = "b", ag.ServerRecovery, 6*time.Second, 5*time.Second
	if f := b.Facts(t.Context()); f.Primary != "b" || !f.WriteOpen {
		t.Fatalf("before: primary %q, takes writes %v", f.Primary, f.WriteOpen)
	}
	v.Quorum, v.Silence = false, 6*time.Second
	if f := b.Facts(t.Context()); f.Primary != "" || f.WriteOpen {
		t.Errorf("primary %q, takes writes %v", f.Primary, f.WriteOpen)
	}
}

// TestFactsOfAPrimaryThatIsNotOpen: a node that leads and lets no client in yet names no primary that takes sessions,
// as every other node does.
func TestFactsOfAPrimaryThatIsNotOpen(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	if f := b.Facts(t.Context()); f.Primary != "a" || f.Self != "a" || !f.WriteOpen {
		t.Fatalf("before: primary %q, takes writes %v", f.Primary, f.WriteOpen)
	}
	b.agent.shut = true
	b.clients.routes = &ag.Routes{Primary: "a"}
	if f := b.Facts(t.Context()); f.Primary != "" || f.WriteOpen {
		t.Errorf("primary %q, takes writes %v", f.Primary, f.WriteOpen)
	}
}

// TestVersion holds that a witness tells a replica's major version, of which it knows no more.
func TestVersion(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	if got := b.Version(); got != "15.9" {
		t.Error(got)
	}
	b.witness()
	if got := b.Version(); got != "16" {
		t.Error(got)
	}
	b.Members.Set(ag.Group{})
	if got := b.Version(); got != "15" {
		t.Error(got)
	}
}

// TestJournal holds what a node remembers, oldest first and bounded, and that the members are asked once.
func TestJournal(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for i := range journalDecisions + 50 {
		rule := ag.RuleClaim
		if i%2 == 0 {
			rule = ag.RuleLead
		}
		b.agent.decisions = append(b.agent.decisions, decisions.Decision{At: time.Unix(int64(100+i), 0), Rule: rule, Because: strings.Repeat("ü", journalText), Epoch: 7})
	}
	for i := range journalEvents {
		b.NoteStatement("ann", fmt.Sprintf("ALTER %d", i))
	}
	j := b.Journal()
	if len(j.Decisions) != journalDecisions || len(j.Events) != journalEvents || !slices.IsSortedFunc(j.Events, func(x, y catalog.Event) int { return x.At.Compare(y.At) }) {
		t.Errorf("%d decisions, %d events", len(j.Decisions), len(j.Events))
	}
	if d := j.Decisions[len(j.Decisions)-1]; !d.At.Equal(time.Unix(int64(100+journalDecisions+49), 0)) || len(d.Because) > journalText+3 || !strings.HasSuffix(d.Because, "ü…") {
		t.Errorf("the last decision is %+v", d)
	}
	if e := j.Events[len(j.Events)-1]; e.Kind != "statement" || e.What != fmt.Sprintf("ALTER %d", journalEvents-1) || e.Because != "by ann" {
		t.Errorf("the last event is %+v", e)
	}
	if n := len(b.executed.all()); n != journalEvents/3 {
		t.Errorf("%d statements are kept", n)
	}
	b.NoteFailover(7, "the failover to b is done", strings.Repeat("ü", journalText))
	if j := b.Journal(); j.Events[len(j.Events)-1].Kind != "leadership" || j.Events[len(j.Events)-1].Epoch != 7 || len(j.Events[len(j.Events)-1].Because) > journalText+3 {
		t.Errorf("the last event is %+v", j.Events[len(j.Events)-1])
	}
	b.agent.decisions = nil
	if j := b.Journal(); j.Events[0].Kind != "link" || j.Events[0].What != "link with b: codec lz4" {
		t.Errorf("the first event is %+v", j.Events[0])
	}
	asked := 0
	b.calls["journal"] = func(_ context.Context, to ag.ReplicaID, _ any) (any, error) {
		if to == "w" {
			return nil, errTest
		}
		asked++
		return catalog.Journal{Events: []catalog.Event{{What: string(to)}}}, nil
	}
	f := b.Facts(t.Context())
	for range 2 {
		if j := f.Journals(); len(j) != 2 || j["b"].Events[0].What != "b" || len(j["a"].Events) == 0 || asked != 1 {
			t.Errorf("%d journals, b was asked %d times", len(j), asked)
		}
	}
}

// TestSettings holds whose settings are asked for.
func TestSettings(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.calls["settings"] = func(context.Context, ag.ReplicaID, any) (any, error) { return []catalog.Setting{{}, {}}, nil }
	f := b.Facts(t.Context())
	if s := f.Settings(); len(s["a"]) != 1 || len(s["b"]) != 2 || len(s) != 3 {
		t.Errorf("%+v", s)
	}
	b.clients.settings = []catalog.Setting{{Name: "coterie.hba"}}
	if s, err := b.Settings(t.Context()); len(s) != 2 || s[1].Name != "coterie.hba" || err != nil {
		t.Errorf("%+v, %v", s, err)
	}
	b.server.err = errTest
	if _, err := b.Settings(t.Context()); !errors.Is(err, errTest) {
		t.Error(err)
	}
	b.witness()
	if s, err := b.Settings(t.Context()); s != nil || err != nil {
		t.Errorf("a witness: %+v, %v", s, err)
	}
}

// TestSettingsForAWitness: what may be a secret is told to replicas only.
func TestSettingsForAWitness(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	names := []string{"work_mem", "archive_command", "myapp.credentials", "primary_conninfo written in /etc/x.conf", "synchronous_commit of role app.key", "log_directory"}
	for _, name := range names {
		b.server.settings = append(b.server.settings, postgres.Setting{Name: name, Value: "hunter2"})
	}
	b.server.settings = b.server.settings[1:]
	for replica, want := range map[bool][]string{true: names, false: {"work_mem", "synchronous_commit of role app.key", "log_directory"}} {
		found, err := b.SettingsFor(t.Context(), replica)
		var told []string
		for _, s := range found {
			told = append(told, s.Name)
		}
		if err != nil || !slices.Equal(told, want) {
			t.Errorf("a replica %t is told %q: %v", replica, told, err)
		}
	}
}

// TestExplain holds that every other member is asked, also one that was not reached lately, and that one that does not
// answer is named with its reason.
func TestExplain(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.agent.decisions = []decisions.Decision{{At: time.Unix(1, 0), Rule: ag.RuleLead, Because: "all is well", Epoch: 7}}
	b.calls["decisions"] = func(_ context.Context, to ag.ReplicaID, _ any) (any, error) {
		if to == "c" {
			return nil, errTest
		}
		return decisions.Report{}, nil
	}
	e, ok := b.Explain().(decisions.Explanation)
	if !ok || e.Node != "a" || len(e.Missing) != 1 || e.Missing["c"] != errTest.Error() || len(e.Asked) != 3 {
		t.Errorf("%+v", e)
	}
	if e.NoPrimary != "" {
		t.Errorf("a primary leads, and the explanation says %q", e.NoPrimary)
	}
	if e.NotReady == "" || "not ready: "+e.NotReady != b.Availability().Automatic {
		t.Errorf("automatic failover: %q, and by the status %q", e.NotReady, b.Availability().Automatic)
	}
	if want := b.Availability().Failures; len(want) == 0 || !slices.Equal(e.Failures, want) {
		t.Errorf("what each death would lead to: %+v, and by the status %+v", e.Failures, want)
	}
	b.agent.view.Reach, b.agent.view.Record.Epoch.Leader = []ag.ReplicaID{"c", "w"}, "b"
	if e, _ := b.Explain().(decisions.Explanation); e.NoPrimary != "the primary b does not answer" {
		t.Errorf("the primary is dead, and the explanation says %q", e.NoPrimary)
	}
	b.disowned, b.agent.view.Reach = true, nil
	if e, _ := b.Explain().(decisions.Explanation); e.Now != nil || e.Failures != nil || !strings.Contains(e.NoPrimary, "no member of the group any more") {
		t.Errorf("a node that was removed forecasts %+v, %q", e.Now, e.NoPrimary)
	}
	if d := b.Decisions(); len(d) != 1 || d[0].Rule != ag.RuleLead || d[0].Because != "all is well" || d[0].Epoch != 7 {
		t.Errorf("%+v", d)
	}
}

// TestDecisionReport holds that the newest decisions are told, as many as an answer may have.
func TestDecisionReport(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for i := range 20 {
		b.agent.decisions = append(b.agent.decisions, decisions.Decision{Epoch: ag.Epoch(i), Because: strings.Repeat("x", 100<<10)})
	}
	r := b.DecisionReport()
	text, err := json.Marshal(r.Decisions)
	if err != nil || len(text) > decisions.ReportBytes+100 || len(r.Decisions) != 8 || r.Decisions[7].Epoch != 19 || r.View == nil {
		t.Errorf("%d bytes, %d decisions, %v", len(text), len(r.Decisions), err)
	}
	b.agent.view, b.agent.decisions = nil, nil
	if r := b.DecisionReport(); r.View != nil || len(r.Decisions) != 0 {
		t.Errorf("%+v", r)
	}
}
