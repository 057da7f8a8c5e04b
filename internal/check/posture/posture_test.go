package posture

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab/pgtest"
)

// said returns each finding as level and text.
func said(found []check.Finding) (out []string) {
	for _, f := range found {
		out = append(out, string(f.Level)+" "+f.What)
	}
	return out
}

// expect checks that a finding of that level has that text, and that each that asks for something says why and what.
func expect(t *testing.T, found []check.Finding, want ...string) {
	t.Helper()
	all := said(found)
	for _, w := range want {
		if !slices.ContainsFunc(all, func(s string) bool { return strings.HasPrefix(s, w) }) {
			t.Errorf("%q is not among\n%s", w, strings.Join(all, "\n"))
		}
	}
	for _, f := range found {
		if (f.Level == check.Warning || f.Level == check.Problem) && (f.Why == "" || f.Run == "") {
			t.Errorf("%s: no reason, or nothing to do", f.What)
		}
	}
}

func TestJudgePorts(t *testing.T) {
	t.Parallel()
	c := config.Config{Endpoint: config.Address{Listen: ":5022"}, ReadWrite: config.Address{Listen: ":5432,/run/x"}, HTTP: config.Address{Listen: ":8008"}}
	expect(t, judgePorts(config.Layout{}, c), "ok endpoint :5022", "ok read_write :5432:", "warning http :8008", "warning clients may log in without TLS")
	if all := strings.Join(said(judgePorts(config.Layout{}, config.Config{Kind: "witness", Endpoint: config.Address{Listen: ":5022"}})), "\n"); strings.Contains(all, "clients") {
		t.Errorf("a witness, which has no clients: %s", all)
	}
	c.HTTP.Listen, c.TLSOnly = "10.1.2.3:8008", true
	expect(t, judgePorts(config.Layout{}, c), "ok http 10.1.2.3:8008", "ok clients need TLS")
	c.HTTP.Listen = ""
	expect(t, judgePorts(config.Layout{}, c), "ok http: switched off")
	for a, want := range map[string]bool{"127.0.0.1:1": true, "localhost:1": true, "[::1]:1": true, "0.0.0.0:1": false, "db1:1": false, "192.0.2.1:1": false} {
		if inner([]string{a}) != want {
			t.Errorf("%s: want %t", a, want)
		}
	}
}

// TestJudgeClientCertificates holds that files about client certificates are read as the agent reads them.
func TestJudgeClientCertificates(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "none.pem")
	if err := os.WriteFile(file, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, judgeClientCertificates(config.Config{ClientCA: "/nowhere/ca.pem", ClientCRL: file}), "problem client_ca /nowhere/ca.pem cannot be used", "problem client_crl "+file+" cannot be used")
	if found := judgeClientCertificates(config.Config{}); found != nil {
		t.Errorf("without the settings: %v", found)
	}
}

func TestJudgeRules(t *testing.T) {
	t.Parallel()
	c := config.Config{HBA: filepath.Join(t.TempDir(), "rules")}
	for text, want := range map[string]string{
		"host all all 10.0.0.0/8 trust":            "problem line 1 of " + c.HBA + " uses trust",
		"local all all trust":                      "warning line 1 of " + c.HBA + " uses trust",
		"hostssl all all all md5":                  "warning line 1 of " + c.HBA + " uses md5",
		"hostssl all all all cert":                 "problem rules in " + c.HBA + " ask for a client's certificate, and coterie.yaml names no client_ca",
		"hostssl all all all scram-sha-256":        "ok no rule for clients trusts",
		"hostssl all all all kerberos-of-the-moon": "problem the rules in ",
	} {
		if err := os.WriteFile(c.HBA, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		expect(t, judgeRules(config.Layout{}, c), want)
		if got, want := onlyTLS(config.Layout{}, c), strings.HasPrefix(text, "hostssl") && !strings.Contains(text, "moon") || strings.HasPrefix(text, "local"); got != want {
			t.Errorf("%s: only TLS is %t", text, got)
		}
	}
	expect(t, judgeRules(config.Layout{}, config.Config{}), "ok no rule for clients trusts")
	if err := os.WriteFile(c.HBA, []byte("hostssl all all all cert\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.ClientCA = "/ca.pem"
	expect(t, judgeRules(config.Layout{}, c), "warning client certificates are used, and no revocation list")
}

// TestRulesOfTheGroup holds that a node without rules of its own is judged by those that it serves clients by: the
// group's, which are those of a cluster that was adopted.
func TestRulesOfTheGroup(t *testing.T) {
	t.Parallel()
	l := config.Layout{Dir: t.TempDir()}
	if err := os.Mkdir(l.State(), 0o700); err != nil {
		t.Fatal(err)
	}
	for record, want := range map[string]string{
		`{"hba": "host all all all trust"}`:     "problem line 1 of the group's record uses trust",
		`{"hba": "host all all all no-method"}`: "problem the rules in the group's record cannot be read",
		`{"hba": `:                              "problem the rules in the group's record cannot be read",
		`{"hba": ""}`:                           "ok no rule for clients trusts",
	} {
		if err := os.WriteFile(l.GroupFile(), []byte(record), 0o600); err != nil {
			t.Fatal(err)
		}
		expect(t, judgeRules(l, config.Config{}), want)
	}
	c := config.Config{HTTPS: config.Address{Listen: ":8443"}}
	for rules, want := range map[string][]string{
		"hostssl all all 10.0.0.0/8 scram-sha-256": {"ok clients need TLS", "ok https :8443: TLS 1.3 and a login; no rule admits a password"},
		"host all all all scram-sha-256":           {"warning clients may log in without TLS", "warning https :8443: the console's login is open"},
	} {
		if err := os.WriteFile(l.GroupFile(), []byte(`{"hba": "`+rules+`"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		expect(t, append(judgePorts(l, c), judgeConsole(l, c)...), want...)
	}
}

func TestJudgeFiles(t *testing.T) {
	t.Parallel()
	l := clitest.NewNode(t)
	if err := os.Chmod(l.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"ca.key": 0o640, "node.key": 0o600} {
		if err := os.MkdirAll(l.PKI(), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(l.PKI(), name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	found := judgeFiles(l)
	expect(t, found, "problem "+filepath.Join(l.PKI(), "ca.key")+" has mode 0640")
	if len(found) != 1 {
		t.Errorf("%q", said(found))
	}
	if err := os.Chmod(filepath.Join(l.PKI(), "ca.key"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, judgeFiles(l), "ok keys and directories are private")
	conf := filepath.Join(l.Backup(), "pgbackrest.conf")
	if err := errors.Join(os.Mkdir(l.Backup(), 0o700), os.WriteFile(conf, nil, 0o600), os.Chmod(conf, 0o644)); err != nil {
		t.Fatal(err)
	}
	expect(t, judgeFiles(l), "problem "+conf+" has mode 0644")
}

// TestFilesOfANodeOfAnyName holds that the keys are looked at of a node directory whose name would be a pattern.
func TestFilesOfANodeOfAnyName(t *testing.T) {
	t.Parallel()
	l := config.Layout{Dir: filepath.Join(t.TempDir(), "db[1]")}
	if err := os.MkdirAll(l.PKI(), 0o700); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(l.PKI(), "ca.key")
	if err := errors.Join(os.WriteFile(key, nil, 0o600), os.Chmod(key, 0o644)); err != nil {
		t.Fatal(err)
	}
	expect(t, judgeFiles(l), "problem "+key+" has mode 0644")
	if err := errors.Join(os.RemoveAll(l.PKI()), os.WriteFile(l.PKI(), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	expect(t, append(judgeFiles(l), judgeKeys(l, config.Config{})...), "failed "+l.PKI()+": not checked", "failed "+l.PKI()+": not checked")
}

func TestJudgeProcess(t *testing.T) {
	t.Parallel()
	const status = "Name:\tx\nUid:\t101\t101\t101\t101\nCapPrm:\t0000000000003000\nNoNewPrivs:\t1\n"
	p, err := parseProcess(status)
	if err != nil || p != (process{101, 0x3000, true}) {
		t.Fatalf("%+v, %v", p, err)
	}
	if _, err := parseProcess("Name:\tx\n"); err == nil {
		t.Error("half a status was read")
	}
	expect(t, judgeProcess("agent", p), "ok the agent has CAP_NET_ADMIN, CAP_NET_RAW")
	expect(t, judgeProcess("server", p), "problem the server has CAP_NET_ADMIN, CAP_NET_RAW")
	expect(t, judgeProcess("agent", process{user: 101}), "ok the agent has no capability", "warning the agent, and what it runs, may gain")
	expect(t, judgeProcess("agent", process{capabilities: 1}), "problem the agent runs as root")
	expect(t, judgeProcesses(&api.Process{Agent: os.Getpid(), Keeper: 1 << 30}), "failed keeper: not checked")
	expect(t, []check.Finding{judgeScope("1", nil)}, "ok kernel.yama.ptrace_scope is 1")
	expect(t, []check.Finding{judgeScope("0", nil)}, "warning kernel.yama.ptrace_scope is 0")
	expect(t, []check.Finding{judgeScope("", errors.New("none"))}, "warning this kernel has no")
}

func TestWeakness(t *testing.T) {
	t.Parallel()
	now := time.Now()
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	good, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	small, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]*x509.Certificate{
		"":                            {PublicKey: &good.PublicKey, NotAfter: now.Add(time.Hour)},
		"has expired":                 {PublicKey: &good.PublicKey, NotAfter: now.Add(-time.Hour)},
		"has an RSA key of 1024 bits": {PublicKey: &short.PublicKey, NotAfter: now.Add(time.Hour)},
		"has an elliptic key of 224":  {PublicKey: &small.PublicKey, NotAfter: now.Add(time.Hour)},
		"is signed with SHA1-RSA":     {SignatureAlgorithm: x509.SHA1WithRSA, PublicKey: &good.PublicKey, NotAfter: now.Add(time.Hour)},
		"is signed with ECDSA-SHA1":   {SignatureAlgorithm: x509.ECDSAWithSHA1, PublicKey: &good.PublicKey, NotAfter: now.Add(time.Hour)},
	} {
		if got := weakness(c, now); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	found, err := Find(t.Context(), a.Layout.Dir)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, found, "ok there is no node in ")
	text := "node: n3\nkind: witness\ngroup: 3b5ee5a4-4c9c-4b7c-9d7e-2f6f6c6c2c11\ngroup_name: g\nendpoint: {listen: ':5022'}\nhttp: {listen: ':8008'}\n"
	if err := os.WriteFile(filepath.Join(a.Layout.Dir, config.File), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	a.SetStatus(api.Status{Node: "n3", Replicas: []api.Replica{{Name: "n3", Mode: ag.ConfigurationOnly, Local: &api.Process{Agent: os.Getpid()}}}})
	if found, err = Find(t.Context(), a.Layout.Dir); err != nil {
		t.Fatal(err)
	}
	expect(t, found, "warning http :8008", "ok witnesses: n3;", "warning a configuration of the group is used without a signature")
	at := time.Now()
	expect(t, []check.Finding{judgeConfiguration(api.Configuration{WaitsFor: []ag.ReplicaID{"n2", "w"}})},
		"warning a configuration of the group is used without a signature; the primary waits for n2 w")
	expect(t, []check.Finding{judgeConfiguration(api.Configuration{SignedOnly: true, SignedRecord: true})}, "ok only configurations, records")
	expect(t, []check.Finding{judgeConfiguration(api.Configuration{SignedOnly: true, WaitsFor: []ag.ReplicaID{"n2"}})},
		"warning the record of who leads, and of which members hold which commits, is used without a signature; the primary waits for n2")
	expect(t, []check.Finding{judgeConfiguration(api.Configuration{SignedOnly: true, Refused: 2, At: &at, Why: "it has no signature"})},
		"problem configurations in the quorum's store were refused since the agent started: 2,")
	expect(t, judgeRefusals("requests of operators", api.Refusals{}))
	expect(t, judgeRefusals("requests of operators", api.Refusals{Refused: 1, At: &at, Why: "it was put back"}),
		"problem requests of operators in the quorum's store were refused since the agent started: 1,")
}

// realServer starts a server of the test's own.
func realServer(t *testing.T) *pgtest.Server {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a real server")
	}
	s, err := pgtest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Remove() })
	return s
}

const createsRoles = "warning roles that may grant themselves the roles of the console, and before PostgreSQL 16 every role but superusers: "

// TestRoles asks a real server, which has one of everything that the probe looks for, and before that nothing.
func TestRoles(t *testing.T) {
	t.Parallel()
	s := realServer(t)
	judge := func() (out []check.Finding) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), s.DSN())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		for _, q := range questions {
			rows, err := conn.Query(t.Context(), q.query)
			if err != nil {
				t.Fatal(err)
			}
			names, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatalf("%s: %v", q.what, err)
			}
			out = append(out, q.judge(names))
		}
		return out
	}
	for _, f := range judge() {
		if f.Level != check.OK {
			t.Errorf("a new server: %s", f.What)
		}
	}
	conn, err := pgx.Connect(t.Context(), s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), `CREATE ROLE boss SUPERUSER LOGIN PASSWORD 'x'; CREATE ROLE reader LOGIN; CREATE ROLE readers; GRANT pg_read_server_files TO readers; GRANT readers TO reader;
CREATE ROLE copier REPLICATION; CREATE ROLE clerk CREATEROLE; CREATE ROLE old PASSWORD 'md5d41d8cd98f00b204e9800998ecf8427e'; CREATE EXTENSION postgres_fdw;
CREATE SERVER self FOREIGN DATA WRAPPER postgres_fdw; CREATE USER MAPPING FOR reader SERVER self OPTIONS (password_required 'FALSE');
UPDATE pg_language SET lanpltrusted = false WHERE lanname = 'plpgsql'; CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'`); err != nil {
		t.Fatal(err)
	}
	clerk := []string{createsRoles + "clerk"}
	var version int
	if err := conn.QueryRow(t.Context(), "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		t.Fatal(err)
	}
	if version >= 160000 { // CREATEROLE grants only what it has made
		clerk = nil
	}
	expect(t, judge(), slices.Concat([]string{
		"warning superusers with a password: boss",
		"warning roles that may read or write the server's files, or run programs as its user: reader, readers", "warning roles with REPLICATION: copier",
	}, clerk,
		[]string{"warning roles with an MD5 password: old", "warning functions in untrusted languages: postgres.plpgsql", "warning user mappings with password_required=false: postgres.self (reader)"})...)
	if _, err := conn.Exec(t.Context(), `CREATE ROLE coterie_operator; CREATE ROLE chief; CREATE ROLE deputy IN ROLE chief; GRANT coterie_operator TO chief WITH ADMIN OPTION; ALTER ROLE clerk NOCREATEROLE`); err != nil {
		t.Fatal(err)
	}
	if all := fmt.Sprint(judge()); !strings.Contains(all, createsRoles[len("warning "):]+"chief, deputy ") {
		t.Errorf("%s", all)
	}
	if _, err := conn.Exec(t.Context(), `CREATE ROLE coterie_viewer; CREATE ROLE coterie_admin; GRANT coterie_viewer TO coterie_admin;
CREATE ROLE vera LOGIN PASSWORD 'x' IN ROLE coterie_viewer; CREATE ROLE anna LOGIN PASSWORD 'x' IN ROLE coterie_admin;
CREATE ROLE nina LOGIN PASSWORD 'x'; CREATE ROLE vito LOGIN IN ROLE coterie_viewer; CREATE ROLE vera_group PASSWORD 'x' IN ROLE coterie_viewer`); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string][]string{loginsQuery(false): {"anna", "boss", "vera"}, loginsQuery(true): {"anna", "boss", "postgres", "vera", "vito"}} {
		rows, err := conn.Query(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || !slices.Equal(got, want) {
			t.Errorf("logins to the console: %v, %v; want %v", got, err, want)
		}
	}
	if f := questions[0].judge(slices.Repeat([]string{"x"}, 13)); !strings.HasSuffix(f.What, "and 3 more") {
		t.Error(f.What)
	}
}

// TestOwnerHidesNothing has the owner of a database set for it what a look would see less by, or fail.
func TestOwnerHidesNothing(t *testing.T) {
	t.Parallel()
	s := realServer(t)
	cfg, err := pgx.ParseConfig(s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for _, sql := range []string{
		"CREATE ROLE owner", "CREATE DATABASE theirs OWNER owner", "SET ROLE owner", "ALTER DATABASE theirs SET role = owner", "ALTER DATABASE theirs SET local_preload_libraries = none",
		"ALTER DATABASE theirs SET statement_timeout = 1",
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Database, cfg.RuntimeParams = "theirs", params()
	look, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = look.Close(context.Background()) }()
	var got string
	err = look.QueryRow(t.Context(), "SELECT concat_ws(' ', (SELECT rolsuper FROM pg_roles WHERE rolname = current_user), current_setting('transaction_read_only'), current_setting('statement_timeout'))").Scan(&got)
	if err != nil || got != "t on 10s" {
		t.Errorf("%q, %v", got, err)
	}
}
