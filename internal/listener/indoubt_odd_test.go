package listener

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

// linkedPrimary is farPrimary with a link before the primary a.
func linkedPrimary(t *testing.T, change ...func(*Config)) (far, near *group, link *lossyLink) {
	t.Helper()
	far, near = farPrimary(t, change...)
	link = newLossyLink(t, near.servers["a"])
	servers := map[ag.ReplicaID]*server{"a": {name: "a", dir: link.dir}, "b": near.servers["b"]}
	far.servers, near.servers = servers, servers
	return far, near, link
}

// Wherever the answers to the question and the COMMIT are cut, the client gets its own answer and nothing else. The
// outcome can be asked for between the two.
func TestAnswerOfACommitInPieces(t *testing.T) {
	m := func(typ byte, body string) []byte { return pgwire.AppendMessage(nil, typ, []byte(body)) }
	file, row, inBlock := m('V', "\x00\x00\x00\x18000000020000000000000003"), m('V', "\x00\x00\x00\x03741"), m('Z', "T")
	bad := m('E', "SERROR\x00VERROR\x00C42501\x00Mpermission denied\x00\x00")
	debug, setting, told := m('N', "SDEBUG\x00VDEBUG\x00Mx\x00\x00"), m('S', "TimeZone\x00UTC\x00"), m('A', "\x00\x00\x00\x01c\x00p\x00")
	long := m('N', "SWARNING\x00VWARNING\x00M"+strings.Repeat("x", socket.LargeBuffer)+"\x00\x00")
	end := slices.Concat(m('1', ""), m('2', ""), m('n', ""), m('C', "COMMIT\x00"), m('Z', "I"))
	aborted := slices.Concat(m('1', ""), m('2', ""), m('n', ""), m('C', "ROLLBACK\x00"), m('Z', "I"))
	for _, c := range []struct {
		name           string
		probed, answer []byte
		heard          []byte
		known          bool
	}{
		{"plain", slices.Concat(row, inBlock, file, inBlock), end, end, true},
		{"with messages between", slices.Concat(setting, debug, row, debug, inBlock, told, file, inBlock), slices.Concat(debug, end, told), slices.Concat(setting, told, debug, end, told), true},
		{"with a long message", slices.Concat(row, inBlock, long, file, inBlock), end, slices.Concat(long, end), true},
		{"the question fails", slices.Concat(bad, m('Z', "E"), bad, m('Z', "E")), aborted, slices.Concat(bad, m('Z', "I")), false},
	} {
		all := slices.Concat(c.probed, c.answer)
		for cut := range min(len(all), 500) { // 0: byte by byte
			heard := &heardBytes{}
			x := &session{srv: &Server{log: slog.New(slog.DiscardHandler)}, client: heard}
			x.work.Asking.Commit = indoubt.New(slices.Clone(end), 0)
			x.work.Asking.Asks.Store(true)
			x.work.Status.Store('T')
			x.work.Owed.Store(1)
			var kept []byte
			feed := func(b []byte) {
				chunk := append(kept, b...)
				n, err := x.pass(chunk, len(kept))
				if err != nil {
					t.Fatalf("%s, cut at %d: %v", c.name, cut, err)
				}
				kept = slices.Clone(chunk[:n])
			}
			for at := 0; at < len(all); {
				n := 1
				switch {
				case cut > 0 && at < cut:
					n = cut - at
				case cut > 0:
					n = len(all) - at
				}
				if len(c.probed) > at { // the two parts arrive one after the other
					n = min(n, len(c.probed)-at)
				}
				feed(all[at : at+n])
				if at += n; at == len(c.probed) && x.work.Provable() != c.known {
					t.Errorf("%s, cut at %d: the outcome can be asked for: %v", c.name, cut, !c.known)
				}
			}
			if !bytes.Equal(heard.b, c.heard) || len(kept) > 0 || x.way.MidMessage {
				t.Fatalf("%s, cut at %d: the client hears %.300q, and %q is left", c.name, cut, heard.b, kept)
			}
		}
	}
}

// heardBytes is a client that keeps what it is sent.
type heardBytes struct {
	net.Conn
	b []byte
}

func (h *heardBytes) Write(p []byte) (int, error) {
	h.b = append(h.b, p...)
	return len(p), nil
}

// The same of a real server, byte by byte, also if the question fails, if there are messages of each statement, or a
// notification.
func TestAnswerOfACommitByteByByte(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("takes ten seconds: set COTERIE_LONG=1")
	}
	_, near, link := linkedPrimary(t)
	near.role("torn", "login")
	a := &server{name: "a", dir: link.to.dir}
	const function = "function pg_catalog.pg_current_xact_id_if_assigned()"
	defer a.sql(t, "grant execute on "+function+" to public")
	for _, c := range []struct {
		user, options string
		revoked       bool
		want          string
	}{
		{"postgres", "", false, "COMMIT I"},
		{"postgres", "-c client_min_messages=log -c log_statement=all -c log_duration=on", false, "COMMIT I"},
		{"torn", "", true, "ERROR 42501 I"},
	} {
		cfg, err := pgx.ParseConfig(dsn(near.rw, "user="+c.user+" options='"+c.options+"'"))
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var noticed []string
		told := 0
		cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			mu.Lock()
			defer mu.Unlock()
			noticed = append(noticed, n.Message+n.Detail)
		}
		cfg.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { told++ }
		for _, how := range []string{bySimple, byUnnamed, byNamed} {
			conn, err := pgx.ConnectConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			near.do(conn, "listen coterie_lost")
			preparesCommit(t, conn)
			near.known()
			near.unasked()
			if c.revoked {
				a.sql(t, "revoke execute on "+function+" from public")
			}
			near.do(conn, "begin", "select 1")
			mu.Lock()
			noticed = nil
			mu.Unlock()
			a.sql(t, "select pg_notify('coterie_lost', repeat('x', 50))") // is told with the answer to the COMMIT
			link.cuts.Store(true)
			got := <-sendsCommit(conn, how)
			link.cuts.Store(false)
			if got != c.want && !strings.HasPrefix(got, c.want+" ") {
				t.Errorf("%+v, %s: the client hears %q", c, how, got)
			}
			near.shows(conn, map[string]string{"select current_setting('cluster_name')": "a"})
			mu.Lock()
			for _, n := range noticed {
				if strings.Contains(n, "pg_current_xact_id") || strings.Contains(n, "pg_walfile_name") {
					t.Errorf("%+v: the client gets the notice %.100q", c, n)
				}
			}
			if c.options != "" && len(noticed) == 0 {
				t.Error("the client gets no message of its COMMIT")
			}
			mu.Unlock()
			if c.revoked {
				a.sql(t, "grant execute on "+function+" to public")
			}
			_ = conn.Close(t.Context())
			waitFor(t, "its session has ended", func() bool { return len(near.srv.Sessions()) == 0 })
		}
		if told != 3 {
			t.Errorf("%+v: %d notifications", c, told)
		}
	}
}

// The COMMIT of a transaction that has only read speaks for what was read, where the client has asked for that. Without
// an answer nobody has confirmed it.
func TestUnconfirmedReadsAreInDoubt(t *testing.T) {
	for _, c := range []struct {
		reads  startup.Reads
		strict bool
		want   string
	}{
		{startup.ReadsLease, false, "COMMIT I"},
		{startup.ReadsDurable, false, "FATAL 08007"},
		{startup.ReadsConfirmed, false, "FATAL 08007"},
		{startup.ReadsLease, true, "FATAL 08007"},
	} {
		t.Run(fmt.Sprint(c.reads, c.strict), func(t *testing.T) {
			_, near, link := linkedPrimary(t, func(cfg *Config) {
				cfg.Durable = func(context.Context, ag.LSN) error { return nil }
				cfg.FlushLSN = func(context.Context) (ag.LSN, error) { return 1, nil }
				cfg.Confirm = func(context.Context) error { return nil }
				cfg.Strict = func() bool { return c.strict }
			})
			conn := near.mustDial(near.rw, "user=postgres coterie.reads="+string(c.reads))
			near.known()
			near.unasked()
			near.do(conn, "begin", "select 1")
			what := "answer"
			link.loses.Store(&what)
			heard := sendsCommit(conn, bySimple)
			waitFor(t, "it is lost", link.lost.Load)
			time.Sleep(50 * time.Millisecond) // what is not lost arrives
			near.dies()
			if got := <-heard; got != c.want && !strings.HasPrefix(got, c.want+" ") {
				t.Errorf("the client hears %q, want %q", got, c.want)
			}
		})
	}
}

// A request that counts as sent when the session begins to leave its server goes to that server, and not to the next
// one as well: the client has one answer to it.
func TestReleasedRequestIsNotKept(t *testing.T) {
	sent := &heardBytes{}
	x := &session{srv: &Server{}, backend: sent, work: underway.Work{OnPrimary: true, Rules: &underway.Rules{}}}
	x.work.Rules.Continuity = func() bool { // called during the release
		x.work.Leaving.Store(true)
		return true
	}
	x.work.Known.Follows = true
	x.work.Status.Store('T')
	commit := pgwire.AppendMessage(nil, 'Q', []byte("commit\x00"))
	if bad, err := x.forward(slices.Clone(commit)); bad != nil || err != nil {
		t.Fatal(bad, err)
	}
	if x.work.Owed.Load() != 1 || !bytes.Equal(sent.b, commit) || len(x.moving.rest.B) > 0 {
		t.Errorf("%d answers are owed, the server has %q, and the next one is to get %q", x.work.Owed.Load(), sent.b, x.moving.rest.B)
	}
	next := pgwire.AppendMessage(nil, 'Q', []byte("begin\x00"))
	if _, err := x.forward(slices.Clone(next)); err != nil || !bytes.Equal(sent.b, commit) || !bytes.Equal(x.moving.rest.B, next) {
		t.Errorf("%v: the server has %q, and the next one is to get %q", err, sent.b, x.moving.rest.B)
	}
}

// A session that goes on may be asked for its transactions' numbers if its new server lets it: the node of the old one
// may have been one that does not say.
func TestContinuedSessionTellsNumbers(t *testing.T) {
	_, near := farPrimary(t)
	conn := near.mustDial(near.rw, "user=postgres")
	near.known()
	near.unasked()
	x := near.sessionOf(conn.PgConn().Conn())
	x.work.Lock()
	x.work.Known.Told.Tells = false
	x.work.Unlock()
	near.dies()
	near.shows(conn, map[string]string{"select current_setting('cluster_name')": "b"})
	y := near.sessionOf(conn.PgConn().Conn())
	y.work.Lock()
	defer y.work.Unlock()
	if st := y.work.Known.Told; st == nil || !st.Tells {
		t.Errorf("state %+v", st)
	}
}
