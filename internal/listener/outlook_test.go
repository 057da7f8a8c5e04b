package listener

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/inquiry"
)

// outlookCase is a session of an application of its own, brought into a state.
type outlookCase struct {
	name      string
	before    []string // statements, after which it is asked for its state
	after     []string // and which it is not asked about
	during    string   // is under way
	want      string   // why it would not be kept; "": it would be
	statement string   // of what made it so
}

var outlooks = []outlookCase{
	{name: "idle"},
	{name: "settings", before: []string{"set my.tenant = 'secret-42'"}, after: []string{"select 'secret-43'"}},
	{name: "failed block", after: []string{"begin; select 1/0"}},
	{name: "under way in a block", after: []string{"begin"}, during: "select pg_sleep(63)"},
	{name: "under way", during: slowOn("a")},
	{name: "change under way", during: "select pg_sleep(64) for update", want: "a statement outside a transaction was under way that may have changed something"},
	{name: "changed", after: []string{"set my.password = 'secret-44'"}, want: "its state had changed and was not read since", statement: "SET"},
	{name: "temporary", before: []string{"create temp table secret_table (x int)"}, want: "it has temporary objects", statement: "CREATE TEMP TABLE"},
	{name: "lock", before: []string{"select pg_advisory_lock(4711)"}, want: "it holds an advisory lock"},
	{name: "cursor", before: []string{"declare secret_cursor cursor with hold for select 'secret-45'"}, want: "it has a cursor WITH HOLD", statement: "DECLARE"},
	{name: "listens", before: []string{"listen secret_channel"}, want: "it listens to channels", statement: "LISTEN"},
	{name: "seed", before: []string{"select setseed(0.5)"}, want: "it has set the seed of random", statement: "SELECT"},
}

// outlook returns the one group of an application.
func (g *group) outlook(application string) (found continuity.Group) {
	g.t.Helper()
	n := 0
	for _, x := range g.srv.Continuity() {
		if x.Application == application {
			found = x
			n++
		}
	}
	if n != 1 || found.Sessions != 1 || found.User != "postgres" {
		g.t.Fatalf("%s: %d groups: %+v", application, n, found)
	}
	return found
}

// bring opens the session of a case, and returns what hears of the statement under way.
func (g *group) bring(c outlookCase) (conn *pgx.Conn, ended <-chan error) {
	g.t.Helper()
	conn = g.mustDial(g.rw, "user=postgres")
	g.do(conn, "set application_name = '"+c.name+"'")
	g.do(conn, c.before...)
	x := g.sessionOf(conn.PgConn().Conn())
	waitFor(g.t, c.name+" was asked", func() bool {
		_, asks := inquiry.Due(x, time.Now(), g.srv.inquirer.Times, g.srv.drain.Load() != nil)
		return !asks
	})
	x.work.Lock()
	x.work.Known.Next = time.Now().Add(time.Hour)
	x.work.Unlock()
	for _, q := range c.after {
		if err := <-later(conn, q); err != nil {
			g.t.Logf("%s: %s: %v", c.name, q, err)
		}
	}
	if c.during != "" {
		return conn, later(conn, c.during)
	}
	return conn, nil
}

// The outlook of sessions is what happens when the server's node dies right after it was read.
func TestOutlookHoldsWhenTheNodeDies(t *testing.T) {
	_, near := farPrimary(t)
	type open struct {
		conn  *pgx.Conn
		ended <-chan error
	}
	var list []open
	for _, c := range outlooks {
		conn, ended := near.bring(c)
		list = append(list, open{conn, ended})
	}
	for _, c := range outlooks {
		if c.during != "" {
			waitFor(t, "it runs", func() bool { return near.waiting(c.during) > 0 })
		}
	}
	idle := near.mustDial(near.rw, "user=postgres application_name=idle")
	waitFor(t, "it is known, too", func() bool { return near.stateKnown(idle) })
	before := near.srv.Continuity()
	if text, err := json.Marshal(before); err != nil || strings.Contains(string(text), "secret") {
		t.Errorf("%s, %v", text, err)
	}
	near.dies()
	kept, two := 0, false
	for i, c := range outlooks {
		for _, x := range before {
			if x.Application != c.name {
				continue
			}
			two = two || x.Sessions == 2 && c.name == "idle"
			want := continuity.Prospect{Fate: continuity.Kept}
			if c.want != "" {
				want = continuity.Prospect{Fate: continuity.Ends, Why: c.want}
			} else {
				kept += x.Sessions
			}
			if x.Node != want || x.Server != want || x.Statement != c.statement || x.Replica != "a" {
				t.Errorf("%s: %+v", c.name, x)
			}
		}
		if list[i].ended != nil {
			t.Logf("%s: the statement under way: %v", c.name, <-list[i].ended)
		}
		if got := goesOn(list[i].conn); got != (c.want == "") {
			t.Errorf("%s: goes on: %v", c.name, got)
		}
	}
	if !goesOn(idle) || !two {
		t.Errorf("two sessions of an application: %+v", before)
	}
	if moved := int(near.srv.Stats().Moved); moved != kept {
		t.Errorf("%d sessions moved, and %d were to be kept", moved, kept)
	}
}

// goesOn reports whether a client still has its session.
func goesOn(conn *pgx.Conn) bool {
	for range 3 { // the first may hear that its transaction is lost
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		_, err := conn.Exec(ctx, "rollback")
		cancel()
		if err == nil {
			return true
		}
		if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Severity == "FATAL" {
			return false
		}
	}
	return false
}

// The outlook of sessions is what happens in a planned failover right after it was read.
func TestOutlookHoldsInAFailover(t *testing.T) {
	g := movingGroup(t, nil)
	role := "user=postgres application_name="
	plain, cursor := g.mustDial(g.rw, role+"plain"), g.mustDial(g.rw, role+"first")
	seed, begun := g.mustDial(g.rw, role+"seed"), g.mustDial(g.rw, role+"begun")
	g.do(cursor, "set application_name = 'second'")
	g.do(seed, "select setseed(0.5)")
	g.do(begun, "begin")
	for name, want := range map[string]continuity.Group{
		"plain":  {Outlook: continuity.Outlook{Failover: continuity.Prospect{Fate: continuity.Likely, Why: "its server will be asked"}}},
		"second": {Outlook: continuity.Outlook{Failover: continuity.Prospect{Fate: continuity.Likely, Why: "its server will be asked"}}},
		"begun":  {Outlook: continuity.Outlook{Failover: continuity.Prospect{Fate: continuity.Likely, Why: "it is busy, and is waited for"}}},
		"seed":   {Outlook: continuity.Outlook{Failover: continuity.Prospect{Fate: continuity.Ends, Why: "it has set the seed of random"}, Statement: "SELECT"}},
	} {
		got := g.outlook(name)
		if got.Failover != want.Failover || got.Statement != want.Statement || got.Node.Fate != continuity.Ends || got.Node.Why != "it came through the listener of that node" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	g.do(begun, "commit")
	g.failOver("b")
	for name, conn := range map[string]*pgx.Conn{"plain": plain, "second": cursor, "begun": begun} {
		if !goesOn(conn) {
			t.Errorf("%s ends", name)
		}
	}
	if goesOn(seed) {
		t.Error("the session with a seed goes on")
	}
}

// The outlook of a session knows what the kernel relays for it.
func TestOutlookInTheKernel(t *testing.T) {
	g := offloadGroup(t, func(c *Config) { c.Continuity = always })
	conn, x := g.offloadedSession()
	g.ask(conn, "select 1")
	if x.path() != PathKernel {
		t.Fatalf("it is with %s", x.path())
	}
	list := g.srv.Continuity()
	if len(list) != 1 || list[0].Failover != (continuity.Prospect{Fate: continuity.Likely, Why: "its server will be asked"}) {
		t.Errorf("%+v", list)
	}
	if x.path() != PathKernel {
		t.Errorf("it is with %s afterwards", x.path())
	}
	_, _ = conn.Write(pgwire.AppendMessage(nil, 'X', nil))
}
