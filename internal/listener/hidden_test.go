package listener

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/offload"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// disguise is one session that hides PostgreSQL's warning of a cancelled wait from its client, and whose wait is then
// cut. Each part is drawn from a small grammar.
type disguise struct {
	rng       *rand.Rand
	said      []string // what was chosen, for the log
	before    []string // run by a superuser just before the login
	settings  []pgwire.Parameter
	requests  [][]byte // of the session, in pieces that arrive one after another
	after     []string // run by a superuser while the session is open
	undo      []string
	work      []byte // what commits
	byTimeout bool   // the session's own statement_timeout cuts the wait; else pg_cancel_backend does
}

// hidings are the ways to hide the warning.
var hidings = []func(d *disguise){
	func(d *disguise) {
		d.simple("set " + d.pick("", "session ") + d.name() + d.pick(" = ", " to ") + d.level())
	},
	func(d *disguise) { d.pieces(query("set " + d.name() + " = " + d.level())) },
	func(d *disguise) {
		d.settings = append(d.settings, pgwire.Parameter{Name: d.name(), Value: d.level()})
	},
	func(d *disguise) {
		d.settings = append(d.settings, pgwire.Parameter{Name: "options", Value: "-c " + d.name() + "=" + d.level()})
	},
	func(d *disguise) { d.bound("select set_config($1, $2, false)", d.name(), d.level()) },
	func(d *disguise) { d.called(d.name(), d.level()) },
	func(d *disguise) { d.simple("select quiet(" + d.composed() + ", '" + d.level() + "')") },
	func(d *disguise) { d.simple("select hush()") },
	func(d *disguise) {
		d.simple("update pg_settings set setting = '" + d.level() + "' where name like 'client%" + d.pick("min", "in_mess") + "%'")
	},
	func(d *disguise) { d.simple("select set_config(" + d.composed() + ", '" + d.level() + "', false)") },
	func(d *disguise) {
		d.simple("do $$ begin execute 'set ' || " + d.composed() + " || ' = " + d.level() + "'; end $$")
	},
	func(d *disguise) {
		of := d.pick("role app", "role app in database postgres")
		d.before, d.undo = append(d.before, "alter "+of+" set "+d.name()+" = "+d.level()), append(d.undo, "alter "+of+" reset client_min_messages")
	},
	func(d *disguise) {
		d.after = append(d.after, "alter system set "+d.name()+" = "+d.level(), "select pg_reload_conf()", "select pg_sleep(0.05)")
		d.undo = append(d.undo, "alter system reset client_min_messages", "select pg_reload_conf()", "select pg_sleep(0.05)")
	},
}

// cutters are the requests that commit, and the ways to cut their wait.
var cutters = []func(d *disguise){
	func(d *disguise) { d.timesOut(query(d.pick("call", "CALL", "/* */ call") + " insert_and_commit()")) },
	func(d *disguise) { d.timesOut(query("do $$ begin insert into acks values (1); commit; end $$")) },
	func(d *disguise) { d.timesOut(extended("call insert_and_commit()")) },
	func(d *disguise) { d.work = query("insert into acks values (1)") },
	func(d *disguise) { d.work = extended("insert into acks values ($1)", "1") },
	func(d *disguise) {
		d.simple("begin; insert into acks values (1)")
		d.work = query(d.pick("commit", "END", "commit and chain"))
	},
	func(d *disguise) { d.work = query("select write_it()") },
}

func (d *disguise) pick(list ...string) string {
	s := list[d.rng.IntN(len(list))]
	d.said = append(d.said, s)
	return s
}

func (d *disguise) level() string { return d.pick("error", "Error", "ERROR") }

// name is the setting's name in random capitals.
func (d *disguise) name() string {
	b := []byte("client_min_messages")
	for i := range b {
		if d.rng.IntN(3) == 0 {
			b[i] = strings.ToUpper(string(b[i]))[0]
		}
	}
	return string(b)
}

// composed is an expression for the name.
func (d *disguise) composed() string {
	n := d.name()
	at := 1 + d.rng.IntN(len(n)-1)
	return "'" + n[:at] + "' || '" + n[at:] + "'"
}

func (d *disguise) simple(sql string) {
	d.said, d.requests = append(d.said, sql), append(d.requests, query(sql))
}

func (d *disguise) bound(sql string, args ...string) {
	d.said, d.requests = append(d.said, sql), append(d.requests, extended(sql, args...))
}

// pieces sends a request in two pieces.
func (d *disguise) pieces(b []byte) {
	at := 1 + d.rng.IntN(len(b)-1)
	d.said, d.requests = append(d.said, fmt.Sprintf("%q, cut at %d", b, at)), append(d.requests, b[:at], b[at:])
}

// called calls set_config(text, text, boolean) by a FunctionCall.
func (d *disguise) called(name, value string) {
	b := binary.BigEndian.AppendUint32(nil, 2078)
	b = append(b, 0, 1, 0, 0, 0, 3) // arguments as text
	for _, a := range []string{name, value, "f"} {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(a))), a...)
	}
	d.said, d.requests = append(d.said, "function call"), append(d.requests, pgwire.AppendMessage(nil, 'F', append(b, 0, 0)))
}

func (d *disguise) timesOut(work []byte) {
	d.requests = append(d.requests, query("set statement_timeout = '400ms'"))
	d.byTimeout, d.work = true, work
}

// extended returns a request of the extended protocol with arguments as text.
func extended(sql string, args ...string) []byte {
	z := func(s string) []byte { return pgwire.AppendCString(nil, s) }
	b := pgwire.AppendMessage(nil, 'P', append(append(z(""), z(sql)...), 0, 0))
	bind := append(z(""), z("")...)
	bind = append(bind, 0, 0)
	bind = binary.BigEndian.AppendUint16(bind, uint16(len(args)))
	for _, a := range args {
		bind = append(binary.BigEndian.AppendUint32(bind, uint32(len(a))), a...)
	}
	b = pgwire.AppendMessage(b, 'B', append(bind, 0, 0))
	b = pgwire.AppendMessage(b, 'E', append(z(""), 0, 0, 0, 0))
	return pgwire.AppendMessage(b, 'S', nil)
}

// A cancelled wait is not acknowledged before the standby has the commit, whatever the session and those around it do
// to hide it, on each data path.
func TestHiddenCancelledWait(t *testing.T) {
	p := thePair(t)
	p.primary.sql(t, "create table if not exists acks(id int primary key)",
		"do $$ begin create role app login; exception when duplicate_object then end $$", "grant insert on acks to app",
		"create or replace procedure insert_and_commit() language plpgsql as $$ begin insert into acks values (1); commit; end $$",
		"create or replace function hush() returns text language sql as $$ select set_config('client_min' || '_messages', 'error', false) $$",
		"create or replace function quiet(n text, v text) returns void language plpgsql as $$ begin execute format('set %s = %s', n, v); end $$",
		"create or replace function write_it() returns int language sql as $$ insert into acks values (1) returning 1 $$")
	paths := dataPaths(t)
	groups := make(map[string]*group)
	for _, path := range paths {
		groups[path] = p.group(t, func(c *Config) {
			c.GateHold, c.NoKernelPath, c.offloadAfter = 2*time.Minute, path != PathKernel, 1
			if path == PathGoroutines {
				c.Loops = -1
			}
		})
	}
	// Each hiding and each cutter comes once in a short run, on a path that is drawn.
	n := max(len(hidings), len(cutters))
	if os.Getenv("COTERIE_LONG") != "" {
		n = len(hidings) * len(cutters) * len(paths)
	}
	for i := range n {
		d := &disguise{rng: rand.New(rand.NewPCG(uint64(i), 11))}
		path := paths[(i/len(hidings)+i)%len(paths)]
		hidings[i%len(hidings)](d)
		cutters[(i/len(hidings)+i)%len(cutters)](d)
		t.Run(fmt.Sprintf("%d %s", i, path), func(t *testing.T) { d.run(t, p, groups[path], path) })
	}
	for _, path := range paths {
		groups[path].carried(t, path, 1)
	}
	if g := groups[PathKernel]; g != nil && n >= len(paths) {
		if st := g.srv.Stats(); st.KernelPath["log"] == 0 {
			t.Errorf("no answer was stopped in the kernel by the log: %v", st.KernelPath)
		}
	}
}

// run has the session's wait cut while the standby is frozen.
func (d *disguise) run(t *testing.T, p *pair, g *group, path string) {
	t.Helper()
	defer func() {
		p.relay.freeze(false)
		if len(d.undo) > 0 {
			p.primary.sql(t, d.undo...)
		}
		if t.Failed() {
			t.Logf("%q, %q, %q", d.said, d.before, d.after)
		}
	}()
	p.reset(t)
	if len(d.before) > 0 {
		p.primary.sql(t, d.before...)
	}
	name := fmt.Sprintf("d%d", time.Now().UnixNano())
	settings := append([]pgwire.Parameter{{Name: "application_name", Value: name}, {Name: "synchronous_commit", Value: "on"}}, d.settings...)
	conn := g.begin((&startup.Message{User: "app", Database: "postgres", Settings: settings}).Packet())
	defer func() {
		if t.Failed() {
			t.Log(p.waits(name))
		}
		_ = conn.Close()
	}()
	readUntil(t, conn, 'Z')
	for i, b := range d.requests {
		_, _ = conn.Write(b)
		if b[0] != 'Q' && b[0] != 'P' && b[0] != 'F' || i+1 < len(d.requests) && d.requests[i+1][0] != 'Q' && d.requests[i+1][0] != 'P' && d.requests[i+1][0] != 'F' {
			time.Sleep(5 * time.Millisecond)
		}
	}
	_, _ = conn.Write(query("select 'all was done'"))
	readUntilRow(t, conn, "all was done")
	if len(d.after) > 0 {
		p.primary.sql(t, d.after...)
	}
	waitFor(t, "the log is relied on", g.srv.cfg.Log.Sound)
	if path == PathKernel {
		g.untilOffloaded(t, conn)
	}
	p.relay.freeze(true)
	held := g.srv.Stats().Held
	_, _ = conn.Write(d.work)
	heard := make(chan string, 1)
	go func() { heard <- outcomeOf(conn) }()
	if !d.byTimeout {
		p.cancelNamed(t, name)
	}
	waitFor(t, "the answer is held", func() bool { return g.srv.Stats().Held > held || len(heard) > 0 })
	select {
	case s := <-heard:
		t.Fatalf("while the standby was frozen: %s", s)
	case <-time.After(50 * time.Millisecond):
	}
	p.relay.freeze(false)
	if s := <-heard; s != "acknowledged" {
		t.Errorf("when the standby had it: %s", s)
	}
	if !p.confirmed(t) {
		t.Error("acknowledged, and not on the standby")
	}
}

// outcomeOf reads to the end of an answer.
func outcomeOf(conn net.Conn) string {
	for {
		typ, body, err := pgwire.ReadMessage(conn, 1<<20)
		switch {
		case err != nil:
			return err.Error()
		case typ == 'E':
			return pgwire.ErrorField(body, 'C') + " " + pgwire.ErrorField(body, 'M')
		case typ == 'N':
			return "the warning was not hidden: " + pgwire.ErrorField(body, 'M')
		case typ == 'C', typ == 'Z':
			return "acknowledged"
		}
	}
}

// readUntilRow reads to the end of the answer that has this row. An error fails the test.
func readUntilRow(t *testing.T, conn net.Conn, row string) {
	t.Helper()
	for found := false; ; {
		typ, body, err := pgwire.ReadMessage(conn, 1<<20)
		switch {
		case err != nil:
			t.Fatal(err)
		case typ == 'E':
			t.Fatal(pgwire.ErrorField(body, 'M'))
		case typ == 'D':
			found = found || strings.Contains(string(body), row)
		case typ == 'Z' && found:
			return
		}
	}
}

// untilOffloaded asks until the kernel carries the session.
func (g *group) untilOffloaded(t *testing.T, conn net.Conn) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Log(g.sessionOf(conn).standing())
		}
	}()
	waitFor(t, "the kernel carries it", func() bool {
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second)) // for this answer
		_, _ = conn.Write(query("select 1"))
		readUntil(t, conn, 'Z')
		x := g.sessionOf(conn)
		return x != nil && x.work.Offloaded()
	})
}

// sessionOf returns the session of a client; nil if there is none.
func (g *group) sessionOf(conn net.Conn) *session {
	g.srv.mu.Lock()
	defer g.srv.mu.Unlock()
	for _, x := range g.srv.sessions {
		if x.addr == conn.LocalAddr().String() {
			return x
		}
	}
	return nil
}

// standing returns where a session is and what it waits for.
func (x *session) standing() string {
	if x == nil {
		return "there is no session"
	}
	p := x.onLoop.Load()
	if p == nil {
		return "no loop carries it"
	}
	told := make(chan string, 1)
	p.loop.Post(func() {
		s := fmt.Sprintf("%s, owed %d, ended %v, phase %d, never offloaded %v, after %d of %d answers, awaiting %v, draining %v, held %q, rest %q, gate %v, %d answers were held, the log is sound: %v",
			x.path(), x.work.Owed.Load(), x.ended.Load(), p.phase, p.notOffloadable, p.patience.Since, p.patience.Needed, p.awaiting, p.draining, p.held, p.rest,
			x.srv.cfg.Gate()-boottime.Now(), x.srv.Stats().Held, x.srv.cfg.Log != nil && x.srv.cfg.Log.Sound())
		if k := p.kernel; k != nil {
			c := *k.Slot
			s += fmt.Sprintf("\nslot: armed %d, %d up, %d down, bytes left up %d (taken %d, read %d), down %d (taken %d, read %d), back for %s, log read to %d",
				c.Armed, c.Ups, c.Downs, c.UpLeft, c.UpTaken, k.UpRead, c.DownLeft, c.DownTaken, k.DownRead, offload.WhyNames[c.Why], p.loop.path.LogReached.Load())
		}
		for _, w := range p.sides() {
			in, _ := unix.IoctlGetInt(w.FD, unix.SIOCINQ)
			out, _ := unix.IoctlGetInt(w.FD, unix.SIOCOUTQ)
			s += fmt.Sprintf("\nsocket %d: events %#x, stuck %v, %d bytes kept, %d in and %d out in the kernel, unread %v", w.FD, w.interest, w.Stuck, len(w.Out), in, out, offload.Unread(w.FD))
		}
		told <- s
	})
	select {
	case s := <-told:
		return s
	case <-time.After(5 * time.Second):
		return "its loop does nothing"
	}
}

// waits returns what the backend with that application_name and the standby do.
func (p *pair) waits(name string) (s string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := p.primary.connect(ctx, "postgres")
	if err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close(ctx) }()
	err = conn.QueryRow(ctx, "select coalesce((select a::text from pg_stat_activity a where application_name = $1 limit 1), 'no backend') || E'\\n' || "+
		"coalesce((select string_agg(r::text, E'\\n') from pg_stat_replication r), 'no standby') || E'\\n' || pg_current_wal_flush_lsn()", name).Scan(&s)
	return fmt.Sprint(s, err)
}

// cancelNamed cancels the backend with that application_name once it waits for the standby.
func (p *pair) cancelNamed(t *testing.T, name string) {
	t.Helper()
	conn, err := p.primary.connect(t.Context(), "postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	waitFor(t, "the commit waits for the standby, and was cancelled", func() bool {
		return value[int](t, conn, "select count(pg_cancel_backend(pid))::int from pg_stat_activity where application_name = $1 and wait_event = 'SyncRep'", name) > 0
	})
}
