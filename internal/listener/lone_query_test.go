package listener

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/lone"
)

// answered sends a Query and returns its answer, message by message.
func answered(t *testing.T, conn *pgx.Conn, text string) (messages []string) {
	t.Helper()
	c := conn.PgConn().Conn()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.SetDeadline(time.Time{}) }()
	if _, err := c.Write(pgwire.AppendMessage(nil, 'Q', append([]byte(text), 0))); err != nil {
		t.Fatal(err)
	}
	for {
		typ, body, err := pgwire.ReadMessage(c, 1<<20)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		messages = append(messages, fmt.Sprintf("%c %q", typ, body))
		if typ == 'Z' {
			return messages
		}
	}
}

// aChange returns the text of a change, which fails or not.
func aChange(r *rand.Rand) string {
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	value := func() string {
		return one("1", "2", "3", "99", "-1", "null", "'7'", "'x'", "x", "id", "1 / 0", "(1 / (id - 1))", "(select max(x) from q)", "(select 1 / (x - 5) from q where id = 1)",
			"'2020-01-01'::date", "random() < 2", "nextval('q_s')", "nosuch", "1::text", "length('ab')", "99999999999", "e'x'", "id::int")
	}
	where := func() string {
		return one("", "", " where id = 1", " where id > 1", " where x = "+value(), " where "+value(), " where id in (1, 2)", " where false")
	}
	returning := func() string {
		return one("", "", "", " returning id", " returning *", " returning 'unknown', null, x", " returning 1 / (id - 2)", " returning nosuch")
	}
	change := func() string {
		switch r.IntN(4) {
		case 0:
			return "update " + one("q", "q", "only q", "q_view", "q_none", "q_other", "q_ref") + " set x = " + value() + where() + returning()
		case 1:
			return "delete from " + one("q", "q", "q_view", "q_none", "q_ref") + where() + returning()
		case 2:
			return "insert into " + one("q", "q", "q_view", "q_none", "q_other", "q_noisy", "q_ref", "nothing") + " (id, x) values (" + value() + ", " + value() + ")" +
				one("", "", " on conflict do nothing", " on conflict (id) do update set x = "+value()) + returning()
		}
		return "insert into q (id, x) select " + one("10", "'11'", "id + 10", "id") + ", " + value() + " from q" + where() + returning()
	}
	text := change()
	switch r.IntN(8) {
	case 0:
		text = "with w as (" + text + ") select " + one("*", "1", "count(*)") + " from " + one("w", "q")
	case 1:
		text = "with w as (select 1 as y) " + text
	case 2:
		text = "select " + value() + ", x, 'unknown' from q" + where() + one(" for update", " for no key update", " order by id for update skip locked")
	case 3:
		text = one("/* a comment */ ", "-- a line\n", "\t\n") + strings.ToUpper(text) + one("", ";", " ; ", " -- end")
	case 4:
		text = "merge into q using (select " + value() + " as k) s on q.id = s.k when matched then update set x = " + value() + " when not matched then insert (id, x) values (" + value() + ", 3)"
	}
	return text
}

// The answer to a change by a Query is byte for byte the same as without Coterie.
func TestLoneQueryIsAnsweredAsByPostgreSQL(t *testing.T) {
	_, near := farPrimary(t, replaying)
	a := near.servers["a"]
	a.sql(t, "drop schema if exists asked cascade", "create schema asked",
		"create table asked.q (id int primary key, x int check (x <> 7))", "create sequence asked.q_s",
		"create view asked.q_view as select id, x from asked.q where x < 50 with check option",
		"create table asked.q_none (id int, x int)", "create table asked.q_other (id int, x int)",
		"create function asked.noise() returns trigger language plpgsql as 'begin raise notice ''now %'', tg_op; perform pg_notify(''noise'', tg_op); return new; end'",
		"create function asked.late() returns trigger language plpgsql as $$begin raise '%', repeat('late ', 3000); end$$",
		"create table asked.q_noisy (id int, x int)", "create trigger noise before insert on asked.q_noisy for each row execute function asked.noise()",
		"create table asked.q_ref (id int, x int references asked.q deferrable initially deferred)",
		"create function asked.long() returns trigger language plpgsql as $$begin if new.x < 0 then raise notice '%', repeat('n', 9000); end if; if abs(new.x) > 1 then raise '%', repeat('long ', 3000); end if; return new; end$$",
		"create table asked.q_long (id int, x int)", "create trigger long before insert or update on asked.q_long for each row execute function asked.long()",
		"create constraint trigger late after delete on asked.q_long deferrable initially deferred for each row execute function asked.late()")
	defer a.sql(t, "drop schema asked cascade")
	texts := []string{
		"insert into q_ref values (2, 77)", "insert into q_ref values (2, 77) returning x", "insert into q values (1, 1) returning x",
		"insert into q values (4, 1) returning 1 / (x - 1)", "select 1 / (id - 1) from q for update", "select 1 / (id - 2) from q order by id for update",
		"with w as (insert into q values (1, 1) returning x) select x from w", "insert into q_noisy values (1, 1)", "insert into q_noisy values (1, 1) returning id",
		"with w as (select 1 as delete) select 1 / (id - 1) from q for no key update",
		"insert into q_ref select n, 77 from generate_series(1, 3000) n returning id, x, repeat('x', 10)",
	}
	for _, x := range []string{"1", "-1", "2", "-2"} { // errors and notices that are too long to be held
		texts = append(texts, "insert into q_long values (1, "+x+")", "insert into q_long values (1, 1), (2, "+x+") returning *", "with w as (insert into q_long values (1, "+x+") returning x) select x from w")
	}
	texts = append(texts, "delete from q_long", "delete from q_long returning x", "delete from q_long returning repeat('x', 9000)", "update q_long set x = 2 returning x")
	r := rand.New(rand.NewPCG(1, 2))
	for len(texts) < 136 {
		texts = append(texts, aChange(r))
	}
	asked := near.answersAs(texts)
	if asked < 60 {
		t.Errorf("only %d texts were sent in another way", asked)
	}
	a.sql(t, "create rule none as on insert to asked.q_none do instead nothing",
		"create rule others as on insert to asked.q_other do also (insert into asked.q values (new.id, new.x); update asked.q set x = 3)",
		"create rule tells as on update to asked.q_other do also select 'by a rule' as told, new.x")
	if asked = near.answersAs([]string{"update q_other set x = 4", "insert into q_none values (1, 1)", "insert into q_other values (8, 8)"}); asked != 0 {
		t.Errorf("%d texts were sent in another way where a rule may give rows", asked)
	}
}

// answersAs compares the answers through two nodes with those of the server itself. It returns how many of the texts
// went as another request than a Query.
func (g *group) answersAs(texts []string) (asked int) {
	t := g.t
	direct, err := g.servers["a"].connect(t.Context(), "postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = direct.Close(context.Background()) }()
	conn := g.mustDial(g.rw, "user=postgres")
	defer func() { _ = conn.Close(context.Background()) }()
	for _, c := range []*pgx.Conn{direct, conn} {
		_ = answered(t, c, "set search_path = asked")
	}
	waitFor(t, "its state is known", func() bool { return g.stateKnown(conn) })
	g.unasked()
	x := g.sessionOf(conn.PgConn().Conn())
	reset := func() {
		_ = answered(t, direct, "begin; truncate q_other, q, q_none, q_noisy, q_ref, q_long; insert into q_other values (1, 1); insert into q_long values (1, 1), (2, 1); truncate q, q_ref; "+
			"insert into q values (1, 5), (2, 6), (3, 8); insert into q_ref values (1, null); alter sequence q_s restart; commit")
	}
	for _, text := range texts {
		reset()
		want := strings.Join(answered(t, direct, text), "\n")
		reset()
		x.work.Lock()
		if x.beginsChangeOf(text) {
			asked++
		}
		x.work.Unlock()
		if got := strings.Join(answered(t, conn, text), "\n"); got != want {
			t.Errorf("%s\n the client gets\n%.1500s\n want\n%.1500s", text, got, want)
		}
	}
	x.work.Lock()
	defer x.work.Unlock()
	if !x.work.Idle() || x.work.Lone.On() || !x.work.Numberless.IsZero() {
		t.Errorf("idle %v", x.work.Idle())
	}
	return asked
}

// beginsChangeOf reports whether the number of that Query would be asked for.
func (x *session) beginsChangeOf(text string) bool {
	return x.work.Known.Told.Ruleless && lone.Changes(pgwire.AppendMessage(nil, 'Q', append([]byte(text), 0)), x.work.PreparedText)
}
