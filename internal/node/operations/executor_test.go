package operations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/etcd"
)

var _ console.Backend = Executor{}

// run executes a statement as an administrator, and returns the notices as one text.
func (b *bed) run(t *testing.T, text string) (console.Result, string, error) {
	t.Helper()
	s, err := ddl.Parse(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	r, err := Executor{b.Service}.Execute(t.Context(), console.Principal{User: "ann", May: ddl.MayAdminister}, s)
	var notices []string
	for _, n := range r.Notices {
		notices = append(notices, n.Severity+": "+n.Message)
	}
	return r, strings.Join(notices, "\n"), err
}

const alter = "ALTER AVAILABILITY GROUP [DemoAG] "

// TestChange holds that a change is one compare-and-swap of what the record holds then, and that a statement returns
// when every node that answers acts on it.
func TestChange(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text    string
		before  func(b *bed)
		then    func(b *bed) // a second later
		took    time.Duration
		notices string
		written bool
	}{
		"at once":                {text: "SET (COMMIT_RULE = ALL)", written: true},
		"not waited for":         {text: "SUSPEND REPLICA ON N'b' WITH NOWAIT", notices: "NOTICE: data movement of b is suspended until RESUME", written: true},
		"so already":             {text: "SET (COMMIT_RULE = ALL)", before: func(b *bed) { b.store.x.Group.CommitRule = ag.RuleAll }},
		"against other writers":  {text: "SET (COMMIT_RULE = ALL)", before: func(b *bed) { b.store.overtaken = 2 }, written: true},
		"until it is read":       {text: "SET (COMMIT_RULE = ALL)", before: func(b *bed) { b.agent.stale.Store(true) }, then: func(b *bed) { b.agent.stale.Store(false) }, took: time.Second, written: true},
		"before the first turn":  {text: "SET (COMMIT_RULE = ALL)", before: func(b *bed) { b.agent.blind.Store(true) }, then: func(b *bed) { b.agent.blind.Store(false) }, took: time.Second, written: true},
		"never read":             {text: "SET (COMMIT_RULE = ALL)", before: func(b *bed) { b.agent.stale.Store(true) }, took: effectLimit, notices: "WARNING: recorded; the effect is still to come: a has not read it; b has not read it", written: true},
		"a dead node is not one": {text: "SET (COMMIT_RULE = ALL)", before: func(b *bed) { b.agent.stale.Store(true); b.agent.view.Reach = nil }, took: effectLimit, notices: "a has not read it", written: true},
		"until it is dropped": {
			text: "SUSPEND REPLICA ON N'b'", then: func(b *bed) {
				b.store.alter(func(x *etcd.Snapshot) { x.Record.State.V = nil })
			},
			took: time.Second, written: true, notices: "NOTICE: data movement of b is suspended until RESUME",
		},
		"never dropped": {text: "SUSPEND REPLICA ON N'b'", took: effectLimit, notices: "b still counts for commits", written: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			b.store.x.Group.CommitRule = ag.RuleQuorum
			if tt.before != nil {
				tt.before(b)
			}
			if tt.then != nil {
				defer time.AfterFunc(time.Second, func() { tt.then(b) }).Stop()
			}
			was, began := b.store.overtaken, time.Now()
			_, notices, err := b.run(t, alter+tt.text)
			if err != nil || (tt.notices == "") != (notices == "") || !strings.Contains(notices, tt.notices) {
				t.Errorf("%s: %q, %v", name, notices, err)
			}
			if took := time.Since(began); took.Round(time.Second) != tt.took {
				t.Errorf("%s: it took %v", name, took)
			}
			g := b.group()
			if g.CommitRule != ag.RuleAll && !b.replica("b").Suspended || g.SessionTimeout != time.Duration(was)*time.Second || (b.agent.woken > 0) != tt.written {
				t.Errorf("%s: woken %d times, %+v", name, b.agent.woken, g)
			}
			if len(b.status.noted) != 1 || !strings.HasPrefix(b.status.noted[0], "ann: ALTER") {
				t.Errorf("%s: the journal has %q", name, b.status.noted)
			}
		})
	}
}

// TestChangeThatStopsCommits holds that a change which asks for more secondaries than acknowledge at present says so,
// with the way back, and that others do not.
func TestChangeThatStopsCommits(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		required int // -1: not set
		value    string
		streams  []ag.Member
		mute     []ag.ReplicaID
		warned   bool
	}{
		"nobody acknowledges":         {0, "1", nil, nil, true},
		"it streams, and is silent":   {0, "1", []ag.Member{{ID: "b"}}, []ag.ReplicaID{"b"}, true},
		"it acknowledges":             {0, "1", []ag.Member{{ID: "b"}}, nil, false},
		"less is asked for":           {1, "0", nil, nil, false},
		"as much as before":           {1, "1", nil, nil, false},
		"the default asks for as few": {0, "DEFAULT", []ag.Member{{ID: "b"}}, nil, false},
	} {
		b := newBed(t)
		b.store.alter(func(x *etcd.Snapshot) {
			x.Group.Required = &tt.required
			said, err := json.Marshal(agent.Status{Members: tt.streams, Mute: tt.mute})
			if err != nil {
				t.Fatal(err)
			}
			x.Statuses = map[ag.ReplicaID]json.RawMessage{"a": said}
		})
		_, notices, err := b.run(t, alter+"SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = "+tt.value+") WITH NOWAIT")
		warned := strings.Contains(notices, "WARNING: no commit is acknowledged from now on: 1 secondaries must acknowledge, and 0 do at present; start the others, or go back by REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 0")
		if err != nil || warned != tt.warned {
			t.Errorf("%s: %q, %v", name, notices, err)
		}
	}
}

// TestChangeRefuses holds that nothing is written where a statement, the hosts, the primary or the quorum do not allow
// it.
func TestChangeRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text   string
		change func(b *bed)
		state  string
		number int
		want   string
	}{
		"another group":         {text: "ALTER AVAILABILITY GROUP [other] SET (COMMIT_RULE = ALL)", state: "42704", number: 15151},
		"nobody":                {text: alter + "SUSPEND REPLICA ON N'z'", state: "42704", number: 41167},
		"elsewhere, strictly":   {text: alter + "SET (COMMIT_RULE = ALL) WITH STRICT", change: func(b *bed) { b.store.x.Record.Epoch.Leader = "b" }, state: "55000", number: 41140},
		"a slow host":           {text: alter + "SET (LEASE_PROFILE = FAST)", change: func(b *bed) { b.slowHost() }, state: "55000", want: "too long"},
		"without a quorum":      {text: alter + "SET (COMMIT_RULE = ALL)", change: func(b *bed) { b.store.readErr = etcd.ErrNoQuorum }, state: "57P03", number: 988},
		"without a primary":     {text: alter + "ADD DATABASE [shop]", change: func(b *bed) { b.store.x.Record.Epoch.Phase = ag.PhaseSeal }, state: "57P03", want: "no primary at present"},
		"a primary to be":       {text: alter + "REMOVE REPLICA ON N'b'", change: func(b *bed) { b.promotes("b") }, state: "55000", number: 35284, want: "it is the primary"},
		"suspended as it comes": {text: alter + "SUSPEND REPLICA ON N'b'", change: func(b *bed) { b.promotes("b") }, state: "55000", want: "b is the primary"},
		"not created":           {text: alter + "ADD DATABASE [shop]", change: func(b *bed) { b.server.err = errTest }, state: "XX000", want: "on the primary a: it failed in a test"},
		"not the primary here":  {text: alter + "ADD DATABASE [shop]", change: func(b *bed) { b.agent.view.Local.Server = ag.ServerRecovery }, state: "XX000", want: "is not the primary"},
	} {
		b := newBed(t)
		if tt.change != nil {
			tt.change(b)
		}
		_, _, err := b.run(t, tt.text)
		told := asClient(t, b, tt.text)
		if err == nil || told.State != tt.state || told.Number != tt.number || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, as %+v", name, err, told)
		}
		if b.store.rev != 1 || b.agent.woken > 0 || len(b.status.noted) > 0 {
			t.Errorf("%s: revision %d, the journal has %q", name, b.store.rev, b.status.noted)
		}
	}
}

// promotes has a replica be promoted in the next epoch.
func (b *bed) promotes(id ag.ReplicaID) {
	b.store.x.Record.Epoch = ag.EpochRecord{Epoch: 8, Phase: ag.PhasePromote, Leader: id}
}

// slowHost has the host of b take long to fence.
func (b *bed) slowHost() {
	b.agent.statuses = map[ag.ReplicaID]agent.Status{"b": {Fence: 900 * time.Millisecond}}
}

// asClient returns the error that a client of the management socket gets.
func asClient(t *testing.T, b *bed, text string) (e console.Error) {
	t.Helper()
	out, err := b.SQL(t.Context(), text)
	answer, ok := out.(api.SQLAnswer)
	if err != nil || !ok || answer.Error == nil {
		t.Fatalf("%s: %+v, %v", text, out, err)
	}
	if err := json.Unmarshal(answer.Error, &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// TestCreateDatabases holds where a database of the group is created: on the primary, before the record names it, and
// only if it is absent.
func TestCreateDatabases(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		leader    ag.ReplicaID
		there     bool
		overtaken int
		notices   string
	}{
		"here":                        {leader: "a", notices: "NOTICE: database shop was created"},
		"here, it exists":             {leader: "a", there: true},
		"on another node":             {leader: "b", notices: "NOTICE: database shop was created"},
		"on another node, it exists":  {leader: "b", there: true},
		"here, against other writers": {leader: "a", overtaken: 3, notices: "NOTICE: database shop was created"},
	} {
		b := newBed(t)
		remote := &fakeServer{}
		if tt.there {
			b.server.databases, remote.databases = []string{"shop"}, []string{"shop"}
		}
		b.store.x.Record.Epoch.Leader, b.store.overtaken = tt.leader, tt.overtaken
		b.calls["database"] = func(_ context.Context, to ag.ReplicaID, in any) (any, error) {
			if slices.Contains(b.group().Options.Databases, "shop") {
				t.Errorf("%s: the record names the database first", name)
			}
			if to != tt.leader {
				return nil, fmt.Errorf("%s is asked", to)
			}
			return remote.CreateDatabase(t.Context(), fmt.Sprint(in))
		}
		_, notices, err := b.run(t, alter+"ADD DATABASE [shop] WITH NOWAIT")
		made := b.server.databases
		if tt.leader != "a" {
			made = remote.databases
		}
		if err != nil || !strings.HasPrefix(notices, tt.notices) || (notices == "") != (tt.notices == "") || !slices.Equal(made, []string{"shop"}) || !slices.Equal(b.group().Options.Databases, []string{"shop"}) {
			t.Errorf("%s: %q, created %q, in the record %q, %v", name, notices, made, b.group().Options.Databases, err)
		}
		if len(b.server.databases) > 0 && tt.leader != "a" && !tt.there {
			t.Errorf("%s: created here", name)
		}
	}
}

// TestCreateNearDatabase holds that a database which differs from another one by case alone is said to be one of its
// own.
func TestCreateNearDatabase(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.store.x.Record.Epoch.Leader = "a"
	b.server.databases = []string{"shop"}
	b.status.facts.Nodes = map[ag.ReplicaID]catalog.Node{"a": {Databases: []catalog.Database{{Name: "shop"}}}}
	const differs = "NOTICE: database Shop was created; it is another one than shop, because a name keeps its case here, as one in quotes does in PostgreSQL. " +
		`If you meant that one: REMOVE DATABASE [Shop], and DROP DATABASE "Shop" on the primary, and ADD DATABASE [shop]`
	if _, notices, err := b.run(t, alter+"ADD DATABASE [Shop] WITH NOWAIT"); err != nil || notices != differs {
		t.Errorf("%q, %v", notices, err)
	}
	if _, notices, err := b.run(t, alter+"ADD DATABASE [till] WITH NOWAIT"); err != nil || notices != `NOTICE: database till was created, since the primary had none of that name. If you meant another one: REMOVE DATABASE [till], and DROP DATABASE "till" on the primary` {
		t.Errorf("%q, %v", notices, err)
	}
}

// TestFailoverStatement holds what FAILOVER and FORCE_FAILOVER_ALLOW_DATA_LOSS ask for and say.
func TestFailoverStatement(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text    string
		self    ag.ReplicaID
		kind    ag.OpKind
		to      ag.ReplicaID
		notices string
		number  int
	}{
		"here":                {text: "FAILOVER", self: "b", kind: ag.OpPlanned, to: "b", notices: "NOTICE: b is the primary in epoch 8 after 1"},
		"to another":          {text: "FAILOVER TO N'b'", self: "a", kind: ag.OpPlanned, to: "b", notices: "NOTICE: b is the primary in epoch 8 after 1"},
		"by force":            {text: "FORCE_FAILOVER_ALLOW_DATA_LOSS", self: "c", kind: ag.OpForced, to: "c", notices: "every other copy is suspended as it is"},
		"not waited for":      {text: "FAILOVER TO N'b' WITH NOWAIT", self: "a", kind: ag.OpPlanned, to: "b", notices: "NOTICE: the failover to b is asked for"},
		"on the primary":      {text: "FAILOVER", self: "a", number: 41122},
		"on the witness":      {text: "FORCE_FAILOVER_ALLOW_DATA_LOSS", self: "w", number: 41121},
		"not synchronized":    {text: "FAILOVER", self: "c", number: 41142},
		"to one out of group": {text: "FAILOVER TO N'z'", self: "a", number: 41167},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			b.Service.Self = tt.self
			b.clients.routes = &ag.Routes{Primary: tt.to, WriteOpen: true}
			defer time.AfterFunc(time.Second, func() { b.store.alter(leads) }).Stop()
			_, notices, err := b.run(t, alter+tt.text)
			if tt.number != 0 {
				var told *console.Error
				if !errors.As(err, &told) || told.Number != tt.number || b.store.x.Op != nil {
					t.Errorf("%s: %v", name, err)
				}
				return
			}
			if err != nil || !strings.Contains(notices, tt.notices) {
				t.Errorf("%s: %q, %v", name, notices, err)
			}
			var op ag.Op
			if strings.Contains(tt.text, "NOWAIT") {
				if err := json.Unmarshal(b.store.x.Op, &op); err != nil || op.To != tt.to || op.Kind != tt.kind || op.Epoch != 7 {
					t.Errorf("%s: asked for %+v, %v", name, op, err)
				}
			} else if b.store.x.Record.Epoch.Leader != tt.to {
				t.Errorf("%s: %+v", name, b.store.x.Record.Epoch)
			}
			if b.replica("b").Suspended != (tt.kind == ag.OpForced) {
				t.Errorf("%s: %+v", name, b.group().Replicas)
			}
		})
	}
}

// TestRestartListener holds that every node is asked, and that one that does not answer is named.
func TestRestartListener(t *testing.T) {
	t.Parallel()
	synctest.Test(t, restartListener)
}

func restartListener(t *testing.T) {
	b := newBed(t)
	b.store.x.Group.Options.Listeners = []ag.Listener{{Name: "sales"}}
	b.calls["restart-listener"] = func(_ context.Context, to ag.ReplicaID, _ any) (any, error) {
		time.Sleep(time.Second) // all at the same time
		if to == "c" {
			return nil, errTest
		}
		return nil, nil
	}
	began := time.Now()
	_, notices, err := b.run(t, alter+"RESTART LISTENER N'Sales'")
	if took := time.Since(began); took != time.Second {
		t.Errorf("it took %v", took)
	}
	if err != nil || notices != "WARNING: c: it failed in a test" || b.clients.restarted != 1 {
		t.Errorf("%q, %d, %v", notices, b.clients.restarted, err)
	}
	if _, _, err := b.run(t, alter+"RESTART LISTENER N'other'"); err == nil || b.clients.restarted != 1 {
		t.Errorf("an unknown one: %v", err)
	}
}

// TestSeedStatements hold whom SEED REPLICA and CANCEL SEEDING ask for what.
func TestSeedStatements(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	if _, notices, err := b.run(t, alter+"SEED REPLICA ON N'B'"); err != nil || !strings.Contains(notices, "b: pending (operation 1)") || b.seeds.asked[0] != (api.SeedRequest{Replica: "b", Full: true}) {
		t.Errorf("%q, %+v, %v", notices, b.seeds.asked, err)
	}
	b.seeds.err = errTest
	if _, notices, err := b.run(t, alter+"SEED REPLICA ON N'B'"); !errors.Is(err, errTest) || notices != "" || len(b.status.noted) != 1 {
		t.Errorf("refused: %q, %v", notices, err)
	}
}

// TestReports holds the statements that change nothing: they are answered from the facts, and not noted.
func TestReports(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.status.facts = catalog.Facts{Self: "a", Group: b.store.x.Group, Record: b.store.x.Record, Nodes: map[ag.ReplicaID]catalog.Node{"a": {Uptime: time.Hour}}}
	for text, columns := range map[string]int{"SCRIPT": 1, "EXPLAIN FAILOVER": 3, "VERIFY ROUTING": 5, "DBCC TRACESTATUS (9567, -1)": 4} {
		r, _, err := b.run(t, text)
		if err != nil || r.Tag != "SELECT" || len(r.Columns) != columns || len(r.Rows) == 0 && text != "VERIFY ROUTING" {
			t.Errorf("%s: %+v, %v", text, r, err)
		}
		for _, row := range r.Rows {
			if len(row) != columns {
				t.Errorf("%s: %v", text, row)
			}
		}
	}
	b.status.facts.Group.Draft = true
	if r, _, err := b.run(t, "SCRIPT"); err != nil || len(r.Rows) > 0 {
		t.Errorf("the script of a group that does not exist yet: %+v, %v", r, err)
	}
	if len(b.status.noted) > 0 || b.store.rev != 1 {
		t.Errorf("the journal has %q", b.status.noted)
	}
}

// TestRoutingAfterARestart holds that an agent which has just started says where sessions go once it has met the
// members, and one that runs for long says at once that it does not see one.
func TestRoutingAfterARestart(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	g := b.store.x.Group
	for i := range g.Replicas {
		g.Replicas[i].Listener = string(g.Replicas[i].ID) + ":5432"
	}
	routes := &ag.Routes{Primary: "a", WriteOpen: true, Targets: []ag.Target{{ID: "a", Healthy: true}}}
	facts := func(uptime time.Duration, met bool) catalog.Facts {
		f := catalog.Facts{Self: "a", Group: g, Record: b.store.x.Record, WriteOpen: met, Nodes: map[ag.ReplicaID]catalog.Node{}}
		for _, r := range g.Replicas {
			n := catalog.Node{Connected: met || r.ID == "a", Uptime: uptime}
			if met {
				n.Routes = routes
			}
			f.Nodes[r.ID] = n
		}
		return f
	}
	b.status.facts, b.status.then = facts(time.Millisecond, false), []catalog.Facts{facts(time.Second, false), facts(time.Second, true), {}}
	r, _, err := b.run(t, "VERIFY ROUTING")
	if err != nil || len(r.Rows) != 2*len(g.Replicas) || r.Rows[0][2] != "a" || r.Rows[0][3] != nil {
		t.Errorf("after the start: %+v, %v", r.Rows, err)
	}
	b.status.facts, b.status.then = facts(time.Hour, false), []catalog.Facts{facts(time.Hour, true)}
	if r, _, err = b.run(t, "VERIFY ROUTING"); err != nil || len(r.Rows) != len(g.Replicas) || r.Rows[1][4] != "the node does not answer" {
		t.Errorf("later: %+v, %v", r.Rows, err)
	}
}

// TestAddressOfNoNetwork holds that ADD LISTENER and a change of its addresses say at once which replicas could not
// hold an address, and say nothing of those that could, do not answer, or do not tell their networks.
func TestAddressOfNoNetwork(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	in := func(text string) catalog.Node {
		return catalog.Node{Connected: true, Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.9/32"), netip.MustParsePrefix(text)}}
	}
	b.status.facts.Nodes = map[ag.ReplicaID]catalog.Node{"a": in("10.0.0.1/24"), "b": in("10.1.0.2/24"), "c": {Connected: true}}
	for _, tt := range []struct{ text, want string }{
		{"ADD LISTENER N'door' (WITH IP ((N'10.0.0.9', N'255.255.255.0')), PORT = 6432) WITH NOWAIT", "NOTICE: no device of b is in 10.0.0.0/24: where it is the primary, 10.0.0.9 is not up"},
		{"MODIFY LISTENER N'door' (ADD IP (N'10.1.0.9', N'255.255.255.0')) WITH NOWAIT", "NOTICE: no device of a is in 10.1.0.0/24"},
		{"MODIFY LISTENER N'door' (ADD IP (N'10.2.0.9', N'255.255.255.0')) WITH NOWAIT", "NOTICE: no device of a, nor of b is in 10.2.0.0/24"},
		{"MODIFY LISTENER N'door' (PORT = 7432) WITH NOWAIT", ""},
	} {
		_, notices, err := b.run(t, alter+tt.text)
		if err != nil || !strings.Contains(notices, tt.want) || strings.Count(notices, "no device") != min(len(tt.want), 1) {
			t.Errorf("%s: %q, %v", tt.text, notices, err)
		}
	}
}

// TestQueries holds that the console's queries are the catalog's, with its errors.
func TestQueries(t *testing.T) {
	t.Parallel()
	e := Executor{newBed(t).Service}
	columns, params, err := e.Describe(t.Context(), console.Principal{}, "SELECT $1", []console.Type{console.Text})
	if err != nil || len(columns) != 1 || columns[0].Name != "x" || len(params) != 1 || params[0] != console.Text {
		t.Errorf("%+v, %+v, %v", columns, params, err)
	}
	r, err := console.NewSession(e, console.Principal{User: "ann"}).Run(t.Context(), "SELECT 1")
	if err != nil || r.Tag != "SELECT" || len(r.Columns) != 1 || len(r.Rows) != 1 || r.Rows[0][0] != "ann" {
		t.Errorf("%+v, %v", r, err)
	}
	var told *console.Error
	if err := e.Query(t.Context(), console.Principal{}, console.Question{SQL: "bad"}, nil); !errors.As(err, &told) || told.State != "42P01" || told.Hint == "" {
		t.Errorf("%v", err)
	}
	if _, _, err := e.Describe(t.Context(), console.Principal{}, "bad", nil); !errors.As(err, &told) {
		t.Errorf("%v", err)
	}
	if e.Version() != "15.9" {
		t.Errorf("version %s", e.Version())
	}
}
