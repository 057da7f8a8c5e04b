package listener

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// TestLoneRequestsAreTheSame sends random requests outside a transaction on a session whose server dies at a random
// byte of them, or while they are executed, with cancel requests or without. The client gets what that of a session
// gets that stays, message by message; or an error that tells the truth. Nothing is left behind in the session.
func TestLoneRequestsAreTheSame(t *testing.T) {
	far, near := farPrimary(t)
	defer loneSchemas(t, near)()
	ends := map[string]int{}
	_, scripts := runScripts(t, 60, func(r *rand.Rand) bool {
		l := &loneScript{t: t, far: far, near: near, r: r, ends: ends}
		l.run()
		return true
	})
	t.Logf("%d scripts: %v, %d requests were executed again; %v", scripts, ends, near.srv.Stats().Repeated, near.srv.Stats().Unmoved)
	if ends["the same"] < scripts/3 || int(near.srv.Stats().Repeated) < scripts/10 {
		t.Error("too few went on")
	}
}

// TestLoneRequestsOfTheOwnServer is the same of sessions of the node's own listener whose PostgreSQL dies.
func TestLoneRequestsOfTheOwnServer(t *testing.T) {
	ownPaths(t, func(t *testing.T, g *group, with string) {
		defer loneSchemas(t, g)()
		ends := map[string]int{}
		_, scripts := runScripts(t, 12, func(r *rand.Rand) bool {
			l := &loneScript{t: t, near: g, with: " " + with, r: r, ends: ends}
			l.run()
			return true
		})
		t.Logf("%d scripts: %v, %d requests were executed again; %v", scripts, ends, g.srv.Stats().Repeated, g.srv.Stats().Unmoved)
	})
}

// loneSchemas makes what the scripts use, on each server. remove drops it.
func loneSchemas(t *testing.T, g *group) (remove func()) {
	t.Helper()
	g.role("mover", "login")
	g.role("lender", "")
	tables := sameSchemas(t, g)
	for _, s := range g.servers {
		s.sql(t, "drop table if exists public.written cascade", "create table public.written (x int)", "grant all on public.written to public",
			"create or replace function public.writes() returns int language plpgsql as $$begin insert into public.written values (1); return 1; end$$",
			"create or replace function public.seems_stable() returns int stable language plpgsql as $$begin return public.writes(); end$$",
			"create view public.writing as select public.seems_stable() as x", "create view public.numbered as select pg_current_xact_id() is null as x",
			"grant select on public.writing, public.numbered to public")
	}
	return func() {
		for _, s := range g.servers {
			s.sql(t, "select pg_terminate_backend(pid) from pg_stat_activity where wait_event = 'PgSleep'", "drop table public.written cascade",
				"drop view public.writing, public.numbered", "drop function public.seems_stable, public.writes")
		}
		tables()
	}
}

// loneScript is a script under way.
type loneScript struct {
	t            *testing.T
	far, near    *group // far is nil: the session's server is at its own node
	with         string
	r            *rand.Rand
	moved, stays *pgx.Conn
	sets         []string
	request      []byte
	shown        []string // what the request has
	sleeps       bool
	part         bool // only a part of the first message arrives before the death
	ends         map[string]int
}

func (l *loneScript) pick(list ...string) string { return list[l.r.IntN(len(list))] }

// session sets what a client may have set.
func (l *loneScript) session() {
	for range l.r.IntN(5) {
		l.sets = append(l.sets, l.pick("set client_encoding = 'LATIN1'", "set client_encoding = 'SJIS'", "set standard_conforming_strings = off", "set role lender", "set session authorization lender",
			"set default_transaction_isolation = 'serializable'", "set default_transaction_isolation = 'repeatable read'", "set default_transaction_deferrable = on", "set default_transaction_read_only = on",
			"set statement_timeout = '50s'", "set idle_in_transaction_session_timeout = '40s'", "set idle_session_timeout = '300s'", "set lock_timeout = '4s'", "set my.x = '1'", "set row_security = off",
			"prepare by_text as select x from public.t", "listen coterie_lost", "set search_path = s1, public", "set bytea_output = 'escape'",
			"set session characteristics as transaction isolation level serializable, read only, deferrable", "set client_min_messages = 'debug1'"))
	}
	if l.r.IntN(12) == 0 {
		l.sets = append(l.sets, l.pick("begin; declare held cursor with hold for values (1), (2), (3); commit", "select pg_advisory_lock(3)", "create temp table z (x int)", "listen c1", "set datestyle = 'sql, dmy'"))
	}
}

const slowOnA = "select pg_sleep(case current_setting('cluster_name') when 'a' then 67 else 0 end), 'slept'"

// statement returns one statement. Most only read.
func (l *loneScript) statement() string {
	if l.r.IntN(2) == 0 && !l.sleeps {
		l.sleeps = true
		return slowOnA
	}
	if l.r.IntN(20) == 0 {
		return l.pick("set local work_mem = '3MB'", "begin", "commit", "rollback", "set transaction isolation level serializable", "copy (values (1), (2)) to stdout", "execute by_text",
			"table writing", "listen c1", "unlisten *", "declare c cursor for values (1)", "declare c cursor with hold for values (1), (2)", "fetch 1 from held", "deallocate by_text", "insert into written values (1)",
			"select nextval('public.none')", "select x from t for share", "savepoint s", "set my.x = '2'", "selec", "select 'a\\'", "select '\\x01'::bytea, date '2024-02-01'")
	}
	return l.pick("select 1", "select x from t", "table t", "values (1), (2)", "show work_mem", "show transaction_isolation", "show transaction_deferrable", "select 1 / 0", "select nosuch", "", ";", "-- nothing",
		"select x from public.secret order by x", "select 'ü'", "select '\xff'", "select current_user, session_user", "select current_setting('my.x', true)", "select * from generate_series(1, 30)",
		"select repeat('x', 9000)", "with w as (select 1) select * from w", "select x from t order by 1 / (length(x) - 6)", "table numbered", "select date '2024-02-01'",
		"show transaction isolation level", "select '"+strings.Repeat("long ", 3000)+"'", "select 1 where false", "select 1 from t where x = 'none'", "show transaction_read_only", "select count(*) from pg_prepared_statements")
}

func (l *loneScript) send(typ byte, body, shown string) {
	l.request = pgwire.AppendMessage(l.request, typ, []byte(body))
	l.shown = append(l.shown, fmt.Sprintf("%c %.60q", typ, shown))
}

// extended appends messages of the extended protocol up to a Sync.
func (l *loneScript) extended() {
	for range 1 + l.r.IntN(3) {
		name, portal := "", l.pick("", "", "", "p")
		if l.r.IntN(3) == 0 {
			name = l.pick("reads", "sleeps", "fails", "none")
			l.sleeps = l.sleeps || name == "sleeps"
		} else if l.r.IntN(12) > 0 {
			s := l.statement()
			l.send('P', l.pick(append(make([]string, 19), "fresh")...)+"\x00"+s+"\x00\x00\x00", s)
		}
		if l.r.IntN(4) == 0 {
			l.send('D', "S"+name+"\x00", "S"+name)
		}
		format := l.pick("\x00\x00", "\x00\x01\x00\x01")
		l.send('B', portal+"\x00"+name+"\x00\x00\x00\x00\x00"+format, portal+" of "+name)
		if l.r.IntN(3) > 0 {
			l.send('D', "P"+portal+"\x00", "P"+portal)
		}
		for range 1 + l.r.IntN(2) {
			l.send('E', portal+l.pick("\x00\x00\x00\x00\x00", "\x00\x00\x00\x00\x00", "\x00\x00\x00\x00\x01", "\x00\x00\x00\x00\x02"), portal)
			if l.r.IntN(5) == 0 {
				l.send('H', "", "")
			}
		}
		if l.r.IntN(5) == 0 {
			l.send('C', l.pick("P", "P", "P", "P", "P", "P", "P", "S")+l.pick("", "p", "none")+"\x00", "")
		}
	}
	l.send('S', "", "")
}

// make makes the request.
func (l *loneScript) make() {
	if l.r.IntN(2) == 0 {
		l.extended()
		return
	}
	var texts []string
	for range 1 + l.r.IntN(3) {
		texts = append(texts, l.statement())
	}
	text := strings.Join(texts, "; ")
	l.send('Q', text+"\x00", text)
}

// left is what the request leaves behind in a session.
func (l *loneScript) left(c *pgx.Conn) string {
	var all []string
	for _, s := range []string{
		// A question for the state of a session whose transactions are READ ONLY by default sets the last of them.
		"select name, setting from pg_settings where source = 'session' and name not in ('is_superuser', 'transaction_deferrable') order by name", "select name, statement from pg_prepared_statements order by name",
		"select current_setting('my.x', true), current_user, session_user, current_setting('transaction_read_only'), current_setting('transaction_isolation'), current_setting('transaction_deferrable')",
		"select pg_current_xact_id_if_assigned() is null, now() = statement_timestamp()", "select locktype, mode, objid from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'",
		"select name, is_holdable from pg_cursors where name <> '' order by name", "select pg_listening_channels() order by 1",
	} {
		seen, _ := observe(l.t, c.PgConn(), s)
		all = append(all, seen)
	}
	return strings.Join(all, "\n")
}

// begin begins both sessions.
func (l *loneScript) begin() {
	t := l.t
	user := l.pick("mover", "postgres")
	l.moved = l.near.mustDial(l.near.rw, "user="+user+l.with)
	var err error
	if l.stays, err = pgx.Connect(t.Context(), "host="+l.near.servers["c"].dir+" dbname=postgres user="+user); err != nil {
		t.Fatal(err)
	}
	l.session()
	if l.r.IntN(3) == 0 { // the session has no prepared statements, with which not all settings can be moved
		l.sets = append(l.sets, "deallocate all")
	}
	for _, c := range []*pgx.Conn{l.moved, l.stays} {
		for name, text := range map[string]string{"reads": "values (1), (2), (3)", "sleeps": slowOnA, "fails": "select 1 / (length(x) - 6) from public.t"} {
			if _, err := c.PgConn().Prepare(t.Context(), name, text, nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range l.sets {
			_, _ = observe(t, c.PgConn(), s)
		}
	}
}

// known waits until the state of the session is known, if that may be.
func (l *loneScript) known() bool {
	m := losing{t: l.t, near: l.near, moved: l.moved.PgConn()}
	m.settle()
	l.near.unasked()
	return l.near.stateKnown(l.moved)
}

// run executes the script.
func (l *loneScript) run() {
	t := l.t
	l.begin()
	defer func() {
		_ = errors.Join(l.moved.Close(context.Background()), l.stays.Close(context.Background()))
		waitFor(t, "its session has ended", func() bool {
			return len(l.near.srv.Sessions()) == 0 && (l.far == nil || len(l.far.srv.Sessions()) == 0)
		})
		if l.far != nil {
			l.near.returns(l.far)
			return
		}
		back := *l.near.routes.Load()
		back.Epoch, back.Primary = back.Epoch+1, "a"
		l.near.publish(&back)
		l.near.srv.CloseEpoch(back.Epoch, "the primary has changed")
	}()
	before, other := l.left(l.moved), l.left(l.stays)
	if before != other {
		t.Errorf("before: %s\nand\n%s", before, other)
	}
	known := l.known()
	l.make()
	_, err := l.stays.PgConn().Conn().Write(l.request)
	must(t, err)
	want := heardOf(t, l.stays.PgConn().Conn())
	canceled := l.r.IntN(6) == 0
	got := l.dying(canceled)
	l.judge(got, want, before, known, canceled)
}

// judge compares what both clients got, and what is left in their sessions; before is what was.
func (l *loneScript) judge(got, want []string, before string, known, canceled bool) {
	bad := func(what, got, want string) {
		l.t.Errorf("%s\nsettings %q\nrequest %q\nknown %v, canceled %v\n got %s\nwant %s", what, l.sets, l.shown, known, canceled, got, want)
	}
	lines := func(messages []string) string { return strings.Join(messages, "\n     ") }
	last := got[len(got)-1]
	if last == cutWithin && slices.Equal(got[:len(got)-1], want[:min(len(want), len(got)-1)]) {
		l.ends[last]++
		return
	}
	if last[0] != 'Z' && len(got) > 1 { // the end of the stream
		got = got[:len(got)-1]
		last = got[len(got)-1]
	}
	if n := len(got); canceled && n > 2 && strings.Contains(got[n-3], "C57014") && strings.Contains(got[n-2], "C40001") { // the server was canceled, and lost then
		got = slices.Delete(slices.Clone(got), n-3, n-2)
	}
	same := slices.Equal(got, want)
	failed := len(got) > 1 && last[0] == 'Z' && (strings.Contains(got[len(got)-2], "C40001") || canceled && strings.Contains(got[len(got)-2], "C57014"))
	fatal := slices.ContainsFunc([]string{"08007", "57P01", "40001"}, func(code string) bool { return strings.Contains(last, `VFATAL\x00C`+code) })
	switch {
	case fatal && known:
		_, code, _ := strings.Cut(last, `VFATAL\x00C`)
		l.ends["ended with "+code[:5]]++
		if l.part {
			bad("a part of a message had arrived", lines(got), lines(want))
		}
		return
	case fatal:
		l.ends["ended, not known"]++
		return
	case same && !canceled:
		l.ends["the same"]++
	case same:
		l.ends["the same, with a cancel request"]++
	case !failed:
		bad("the answer", lines(got), lines(want))
		return
	case len(got)-2 > len(want) || !slices.Equal(got[:len(got)-2], want[:len(got)-2]):
		bad("the part of the answer", lines(got), lines(want))
		return
	default:
		l.ends["failed"]++
	}
	if failed && last != idle && want[len(want)-1] == idle {
		bad("the status", last, idle)
	}
	l.compareLeft(last, before, same, bad)
}

// idle is a ReadyForQuery outside a transaction block.
const idle = `Z "I"`

// compareLeft compares what is left in both sessions. Of a request that has failed it is what was before.
func (l *loneScript) compareLeft(last, before string, same bool, bad func(what, got, want string)) {
	want := before
	if same {
		want = l.left(l.stays)
	} else if last != idle {
		_, _ = observe(l.t, l.moved.PgConn(), "rollback")
	}
	left := l.left(l.moved)
	if strings.HasPrefix(left, "ERROR 40001") && l.moved.PgConn().TxStatus() == 'E' && last != idle { // the request has opened a block
		_, _ = observe(l.t, l.moved.PgConn(), "rollback")
		left, want = l.left(l.moved), before
	}
	if strings.HasPrefix(left, "FATAL 57P01") || strings.HasPrefix(left, "FATAL 40001") {
		l.ends["ended between two requests"]++
	} else if left != want {
		bad("what is left behind", left, want)
	}
}

// dying sends the request, and has the server die meanwhile. It returns what the client gets.
func (l *loneScript) dying(canceled bool) (got []string) {
	conn := l.moved.PgConn().Conn()
	heard := make(chan []string, 1)
	go func() { heard <- heardOf(l.t, conn) }()
	x := l.near.sessionOf(conn)
	at := len(l.request)
	if l.r.IntN(3) == 0 {
		at = l.r.IntN(at + 1)
	}
	l.part = at < 1+int(binary.BigEndian.Uint32(l.request[1:])) && (l.request[0] == 'Q' || l.request[0] == 'P')
	cancel := func(when int) {
		if canceled && l.r.IntN(3) == when {
			ctx, end := context.WithTimeout(l.t.Context(), 10*time.Second)
			defer end()
			_ = l.moved.PgConn().CancelRequest(ctx)
		}
	}
	if l.r.IntN(4) == 0 { // byte by byte
		for i := range min(at, 300) {
			_, _ = conn.Write(l.request[i : i+1])
		}
		_, _ = conn.Write(l.request[min(at, 300):at])
	} else {
		_, _ = conn.Write(l.request[:at])
	}
	if l.sleeps && at == len(l.request) {
		for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end) && l.near.active("wait_event = 'PgSleep' and pid::text = $2", fmt.Sprint(x.pid)) == 0; {
			time.Sleep(time.Millisecond)
		}
	} else {
		time.Sleep(time.Duration(l.r.IntN(4)) * time.Millisecond)
	}
	cancel(0)
	switch l.r.IntN(2) {
	case 0:
		l.die()
	default:
		if l.far == nil {
			l.near.serverDies()
			cancel(1)
			l.near.succeeds()
			break
		}
		epoch := l.near.routes.Load().Epoch + 1
		l.near.loses()
		cancel(1)
		l.near.publish(pairRoutes(epoch, "b", "b"))
		l.near.srv.CloseEpoch(epoch, "the primary has changed")
	}
	_, _ = conn.Write(l.request[at:])
	cancel(2)
	if l.far != nil {
		l.far.srv.CutBusy("the node is dead")
	}
	got = <-heard
	l.near.servers["a"].sql(l.t, fmt.Sprintf("select pg_terminate_backend(%d, 5000)", x.pid)) // it may hold a snapshot
	return got
}

// die has the server die at once.
func (l *loneScript) die() {
	if l.far != nil {
		l.near.dies()
		return
	}
	l.near.serverDies()
	l.near.succeeds()
}

// cutWithin is the end of a stream within a message.
const cutWithin = "cut within a message"

// heardOf reads messages up to a ReadyForQuery or the end of the stream. Numbers of tables differ between servers.
func heardOf(t *testing.T, conn io.Reader) (messages []string) {
	for {
		typ, body, err := pgwire.ReadMessage(conn, 1<<20)
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) { // no error can be told within a message
				return append(messages, cutWithin)
			}
			return append(messages, err.Error())
		}
		switch typ {
		case 'S', 'N', 'A':
			continue
		case 'T':
			for b := body[2:]; len(b) > 0; {
				n := slices.Index(b, 0) + 1
				binary.BigEndian.PutUint32(b[n:], 0)
				b = b[n+18:]
			}
		}
		messages = append(messages, fmt.Sprintf("%c %.200q", typ, body))
		if typ == 'Z' {
			return messages
		}
	}
}

// A query that is executed again does not wait for others' transactions where it did not before: one that can write
// ignores DEFERRABLE, and one that cannot waits until no serializable transaction is open.
func TestLoneQueryIsNotDeferred(t *testing.T) {
	far, near := farPrimary(t)
	other, err := near.servers["b"].connect(t.Context(), "postgres")
	must(t, err)
	defer func() { _ = other.Close(context.Background()) }()
	for _, way := range []string{"simple", "extended"} {
		conn := near.mustDial(near.rw, "user=postgres")
		near.do(conn, "set default_transaction_isolation = 'serializable'", "set default_transaction_deferrable = on")
		near.known()
		near.unasked()
		heard := asks(conn, way, slowOn("a"))
		waitFor(t, "it runs", func() bool { return near.runs("%pg_sleep(case%") > 0 })
		sqlOn(t, other, "begin isolation level serializable", "create table pending (x int)")
		near.dies()
		select {
		case got := <-heard:
			if got != "b" {
				t.Errorf("%s: the client hears %q", way, got)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: it waits for the transaction of another session", way)
		}
		sqlOn(t, other, "rollback")
		near.do(conn, "select 1")
		_ = conn.Close(context.Background())
		near.servers["a"].sql(t, "select pg_terminate_backend(pid, 5000) from pg_stat_activity where wait_event = 'PgSleep'")
		near.returns(far)
	}
}
