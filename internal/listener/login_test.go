package listener

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/scram"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

func sqlstate(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestLogin(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Limits.FailureDelay = time.Millisecond })
	g.role("alice", "login password 'secret'")
	g.role("nologin", "nologin password 'secret'")
	g.role("expired", "login password 'secret' valid until '2001-01-01'")
	g.role("later", "login password 'secret' valid until '2101-01-01'")
	g.role("nopassword", "login")
	cases := []struct{ user, password, state string }{
		{"alice", "secret", ""},
		{"later", "secret", ""},
		{"alice", "wrong", "28P01"},
		{"nobody", "secret", "28P01"},
		{"nologin", "secret", "28P01"},
		{"expired", "secret", "28P01"},
		{"expired", "wrong", "28P01"},
		{"nopassword", "secret", "28P01"},
	}
	for _, c := range cases {
		t.Run(c.user+" "+c.password, func(t *testing.T) {
			conn, err := g.dial(g.rw, "user="+c.user+" password="+c.password)
			if c.state == "" {
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close(context.Background()) }()
				if got := value[string](t, conn, "select session_user::text"); got != c.user {
					t.Errorf("session_user is %s", got)
				}
				return
			}
			if sqlstate(err) != c.state || !strings.Contains(err.Error(), `password authentication failed for user "`+c.user) {
				t.Errorf("got %v", err)
			}
		})
	}
	if n := g.srv.Stats().Rejected["password"]; n != 6 {
		t.Errorf("%d failures counted", n)
	}
	if _, err := g.dial(g.rw, "user=alice password=secret dbname=nowhere"); sqlstate(err) != "3D000" {
		t.Errorf("PostgreSQL's own refusal: got %v", err)
	}
}

// A client that names the mechanism without a message, with the length -1, is asked for its first one (RFC 4422).
func TestSASLWithoutInitialResponse(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Limits.FailureDelay = time.Millisecond })
	g.role("alice", "login password 'secret'")
	for password, want := range map[string]string{"secret": "open", "Secret": "28P01"} {
		conn := g.beginSCRAM()
		_, _ = conn.Write(pgwire.AppendMessage(nil, 'p', append(pgwire.AppendCString(nil, scram.Mechanism), 0xff, 0xff, 0xff, 0xff)))
		if body := readUntil(t, conn, 'R'); binary.BigEndian.Uint32(body) != auth.SASLMore || len(body) != 4 {
			t.Fatalf("asked by %q", body)
		}
		const bare = "n=,r=clientnonce"
		_, _ = conn.Write(pgwire.AppendMessage(nil, 'p', []byte("n,,"+bare)))
		first := readUntil(t, conn, 'R')
		_, _ = conn.Write(pgwire.AppendMessage(nil, 'p', []byte(scramProof(password, "n,,", "", bare, string(first[4:])))))
		if got := fate(t, conn); got != want {
			t.Errorf("%s: %s, want %s", password, got, want)
		}
	}
}

func TestIdentityAndParameters(t *testing.T) {
	g := newGroup(t, nil)
	g.role("alice", "login password 'secret'")
	conn := g.mustDial(g.rw, "user=alice password=secret application_name=app options='-c my.tenant=4\\\\ 2 -c coterie.client_addr=spoofed -c coterie.replica=spoofed'")
	if got := value[string](t, conn, "select current_setting('coterie.client_addr')"); got != conn.PgConn().Conn().LocalAddr().String() {
		t.Errorf("client_addr %s", got)
	}
	if got := value[string](t, conn, "select current_setting('my.tenant')||current_setting('application_name')||current_setting('coterie.intent')"); got != "4 2appREAD_WRITE" {
		t.Errorf("settings %s", got)
	}
	// docs/connecting.md says that a session can change what it is told of its address.
	if _, err := conn.Exec(t.Context(), "set coterie.client_addr = '6.6.6.6:1'"); err != nil {
		t.Fatal(err)
	}
	if got := value[string](t, conn, "select current_setting('coterie.client_addr')"); got != "6.6.6.6:1" {
		t.Errorf("client_addr that the session has set: %s", got)
	}
	if _, err := conn.Exec(t.Context(), "discard all"); err != nil {
		t.Fatal(err)
	}
	if got := value[string](t, conn, "select current_setting('coterie.intent')"); got != "READ_WRITE" {
		t.Errorf("after DISCARD ALL %q", got)
	}
	if got := value[int32](t, conn, "select pg_backend_pid()"); uint32(got) != conn.PgConn().PID() {
		t.Errorf("pid %d, key has %d", got, conn.PgConn().PID())
	}
	list := g.srv.Sessions()
	if len(list) != 1 || list[0].User != "alice" || list[0].State != "idle" || list[0].Replica != "a" || list[0].Entry != 0 || list[0].PID != conn.PgConn().PID() {
		t.Errorf("sessions %+v", list)
	}
}

// With NameClient the application_name ends with the client's address, and is as long as PostgreSQL keeps it.
func TestNameClient(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules, c.NameClient = trustAll, true })
	for given, want := range map[string]string{"": "", "app": "app - ", strings.Repeat("n", 60): "nnn"} {
		conn := g.mustDial(g.rw, "user=postgres application_name='"+given+"'")
		got := value[string](t, conn, "show application_name")
		if !strings.HasPrefix(got, want) || !strings.HasSuffix(got, conn.PgConn().Conn().LocalAddr().String()) || len(got) > pgwire.MaxName {
			t.Errorf("%q became %q", given, got)
		}
	}
	if conn := g.mustDial(g.rw, "user=postgres application_name=sub replication=database"); conn != nil {
		watch := g.mustDial(g.rw, "user=postgres")
		if got := value[string](t, watch, "select string_agg(application_name, ',') from pg_stat_activity where backend_type = 'walsender' and application_name like 'sub%'"); got != "sub" {
			t.Errorf("a stream is called %q", got)
		}
	}
}

func TestMD5(t *testing.T) {
	g := newGroup(t, func(c *Config) {
		c.Limits.FailureDelay = time.Millisecond
		c.Rules = []hba.Rule{{Type: hba.TypeHost, Databases: []hba.Name{{Text: "all"}}, Users: []hba.Name{{Text: "all"}}, AnyAddress: true, Method: hba.MethodMD5}}
	})
	// md5 of "secret" followed by the name
	g.role("oldie", "login password 'md5"+md5Hex("secretoldie")+"'")
	g.role("alice", "login password 'secret'")
	for _, user := range []string{"oldie", "alice"} {
		conn, err := g.dial(g.rw, "user="+user+" password=secret")
		if err != nil {
			t.Fatalf("%s: %v", user, err)
		}
		_ = conn.Close(t.Context())
		if _, err := g.dial(g.rw, "user="+user+" password=wrong"); sqlstate(err) != "28P01" {
			t.Errorf("%s: %v", user, err)
		}
	}
	g.srv.SetRules(hba.DefaultRules(false))
	if _, err := g.dial(g.rw, "user=oldie password=secret"); sqlstate(err) != "28P01" {
		t.Errorf("md5 verifier under a scram rule: %v", err)
	}
}

func TestTLS(t *testing.T) {
	cert, pool := certificate(t)
	g := newGroup(t, func(c *Config) {
		c.Certificate = func() *tls.Certificate { return cert }
		c.Rules = hba.DefaultRules(true)
	})
	g.role("alice", "login password 'secret'")
	if _, err := g.dial(g.rw, "user=alice password=secret"); sqlstate(err) != "28000" || !strings.Contains(err.Error(), "no pg_hba.conf entry") {
		t.Errorf("without TLS: %v", err)
	}
	cfg, err := pgx.ParseConfig(dsn(g.rw, "user=alice password=secret"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.TLSConfig = &tls.Config{RootCAs: pool, ServerName: "localhost"}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if got := value[string](t, conn, "select current_setting('coterie.tls')"); got != "TLSv1.3" {
		t.Errorf("coterie.tls %s", got)
	}
	if list := g.srv.Sessions(); len(list) != 1 || list[0].TLSName != "localhost" {
		t.Errorf("the name that the client asked for: %+v", list)
	}
	// direct TLS
	raw, err := tls.Dial("tcp", g.rw, &tls.Config{RootCAs: pool, ServerName: "localhost", NextProtos: []string{"postgresql"}})
	if err != nil {
		t.Fatalf("direct TLS: %v", err)
	}
	start := &startup.Message{User: "alice", Database: "postgres"}
	_, _ = raw.Write(start.Packet())
	if typ, _, err := pgwire.ReadMessage(raw, 1000); err != nil || typ != 'R' {
		t.Errorf("direct TLS answered %q, %v", typ, err)
	}
	_ = raw.Close()
	raw, err = tls.Dial("tcp", g.rw, &tls.Config{RootCAs: pool, ServerName: "localhost"})
	if err == nil {
		_, _ = raw.Write(start.Packet())
		if typ, _, err := pgwire.ReadMessage(raw, 1000); err == nil {
			t.Errorf("direct TLS without ALPN answered %q", typ)
		}
		_ = raw.Close()
	}
}

func TestChannelBindingPsql(t *testing.T) {
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Skip("psql not found")
	}
	cert, _ := certificate(t)
	g := newGroup(t, func(c *Config) { c.Certificate = func() *tls.Certificate { return cert } })
	g.role("alice", "login password 'secret'")
	host, port, _ := net.SplitHostPort(g.rw)
	run := func(rest string) (string, error) {
		cmd := exec.Command(psql, "-XAtc", "select 40 + 2", "host="+host+" port="+port+" dbname=postgres user=alice "+rest)
		cmd.Env = append(os.Environ(), "PGPASSWORD=secret", "HOME=/nonexistent")
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	if out, err := run("sslmode=require channel_binding=require"); err != nil || out != "42" {
		t.Errorf("channel_binding=require: %s, %v", out, err)
	}
	if out, err := run("sslmode=require channel_binding=disable"); err != nil || out != "42" {
		t.Errorf("channel_binding=disable: %s, %v", out, err)
	}
	if out, err := run("sslmode=disable channel_binding=require"); err == nil {
		t.Errorf("channel binding without TLS succeeded: %s", out)
	}
}

func TestPeerAndLocalSocket(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "cotls")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	rules, err := hba.Parse(strings.NewReader("local all postgres trust\nlocal all all peer\n"))
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, func(c *Config) { c.ReadWrite, c.Rules = dir+"/.s.PGSQL.5432", rules })
	for _, c := range []struct{ user, state string }{{"postgres", ""}, {"somebody", "28000"}} {
		conn, err := pgx.Connect(t.Context(), "host="+dir+" user="+c.user+" dbname=postgres")
		if sqlstate(err) != c.state {
			t.Fatalf("%s: %v", c.user, err)
		}
		if err == nil {
			if got := value[string](t, conn, "select current_setting('coterie.client_addr')"); got != "local" {
				t.Errorf("client_addr %s", got)
			}
			_ = conn.Close(t.Context())
		}
	}
	_ = g
}

func TestRoleMovesWithTheReplica(t *testing.T) {
	g := newGroup(t, nil)
	g.role("alice", "login password 'secret'") // a salt of its own on each server
	r := fullRoutes(2)
	r.Primary, r.Targets[1].Local = "b", false
	g.publish(r)
	conn := g.mustDial(g.rw, "user=alice password=secret")
	if got := value[string](t, conn, "show cluster_name"); got != "b" {
		t.Errorf("judged by b, ran on %s", got)
	}
	if h := <-g.hellos; h.User != "alice" || h.Database != "postgres" || h.Intent != ag.ReadWrite || h.Epoch != 2 {
		t.Errorf("hello %+v", h)
	}
}

func TestReplication(t *testing.T) {
	g := newGroup(t, nil)
	g.role("alice", "login password 'secret'")
	g.role("cdc", "login replication password 'secret'")
	for _, spelling := range []string{"true", "t", "TR", "on", "yes", "y", "1"} {
		if _, err := g.dial(g.rw, "user=cdc password=secret replication="+spelling); sqlstate(err) != "28000" ||
			!strings.Contains(err.Error(), `no pg_hba.conf entry for replication connection from host "127.0.0.1", user "cdc", no encryption`) {
			t.Errorf("replication=%s: %v", spelling, err)
		}
	}
	if _, err := g.dial(g.rw, "user=alice password=secret replication=database"); sqlstate(err) != "42501" {
		t.Errorf("without the attribute: %v", err)
	}
	if _, err := g.dial(g.ro, "user=cdc password=secret replication=database"); sqlstate(err) != "0A000" {
		t.Errorf("read-only: %v", err)
	}
	conn, err := g.dial(g.rw, "user=cdc password=secret replication=database")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.PgConn().Exec(t.Context(), "IDENTIFY_SYSTEM").ReadAll(); err != nil {
		t.Error(err)
	}
	f := conn.PgConn().Frontend()
	f.Send(&pgproto3.Query{String: "SELECT pg_sleep(2)"})
	f.Send(&pgproto3.Query{String: "IDENTIFY_SYSTEM"}) // by a name that is not known before the first is answered
	if err := f.Flush(); err != nil {
		t.Fatal(err)
	}
	for answers := 0; ; {
		msg, err := f.Receive()
		if bad, ok := msg.(*pgproto3.ErrorResponse); ok && bad.Code == pgwire.StateProtocolViolation {
			break
		} else if _, ok := msg.(*pgproto3.ReadyForQuery); ok {
			answers++
		}
		if err != nil || answers == 2 {
			t.Fatalf("two commands at a time: %d answers, %v", answers, err)
		}
	}
	if _, err := g.dial(g.rw, "user=cdc password=secret replication=database application_name=Cot_b_1"); sqlstate(err) != "28000" {
		t.Errorf("by the name of a member: %v", err)
	}
}

// Physical replication passes where a rule names it, with a role for it: a whole copy with its log, on the ports of the
// primary and the readers. It is never accepted under the name of a member.
func TestPhysicalReplication(t *testing.T) {
	rules, err := hba.Parse(strings.NewReader("host replication cdc,alice all scram-sha-256\n"))
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, func(c *Config) { c.Rules = rules })
	g.role("alice", "login password 'secret'")
	g.role("cdc", "login replication password 'secret'")
	for rest, want := range map[string]string{
		"user=alice replication=true": "42501", "user=cdc replication=yes application_name=cot_b_1": "28000",
		"user=cdc replication=1 options='-c application_name=COT_b_1'": "28000", "user=postgres replication=true": "28000", "user=cdc replication=database": "28000",
	} {
		if _, err := g.dial(g.rw, "password=secret "+rest); sqlstate(err) != want {
			t.Errorf("%s: %v, want %s", rest, err, want)
		}
	}
	bin, err := postgresBin()
	if err != nil {
		t.Skip(err)
	}
	host, port, err := net.SplitHostPort(g.rw)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "pg_basebackup"), "-h", host, "-p", port, "-U", "cdc", "-D", copied, "-X", "stream", "-c", "fast", "--no-sync")
	cmd.Env = append(os.Environ(), "PGPASSWORD=secret", "PGSSLMODE=disable")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("pg_basebackup: %v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(copied, "global", "pg_control")); err != nil {
		t.Error(err)
	}
	reader, err := g.dial(g.ro, "user=cdc password=secret replication=true")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.PgConn().Exec(t.Context(), "IDENTIFY_SYSTEM").ReadAll(); err != nil {
		t.Error(err)
	}
	_ = reader.Close(t.Context())
}

// Addresses of IPv4 and of IPv6 are served together, single ones or all.
func TestBothFamilies(t *testing.T) {
	for list, dialled := range map[string][]string{"127.0.0.1:0, [::1]:0": {"127.0.0.1", "::1"}, "[::]:0": {"127.0.0.1", "::1"}, "0.0.0.0:0,[::]:0": {"127.0.0.1", "::1"}} {
		g := newGroup(t, func(c *Config) { c.Rules, c.ReadWrite = trustAll, list })
		served, _ := g.srv.Addrs()
		for i, host := range dialled {
			_, port, err := net.SplitHostPort(served[min(i, len(served)-1)].String())
			if err != nil {
				t.Fatal(err)
			}
			g.mustDial(net.JoinHostPort(host, port), "user=postgres")
		}
	}
}
