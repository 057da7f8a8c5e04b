package listener

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/unixuser"
	"github.com/coteriedb/coterie/internal/listener/hba"
)

// rulesServer is a real PostgreSQL of its own, whose pg_hba.conf is what a test writes.
type rulesServer struct {
	t     *testing.T
	s     *server
	major int
	tls   bool      // it was built with OpenSSL
	admin *pgx.Conn // is open before the rules change
	file  string    // its pg_hba.conf
	read  int64     // how much of its log was read
	roles map[string]Role
	me    string     // the user who runs the test; a role, too
	own4  netip.Addr // an address of this machine, of its network if it has one
}

// forEachPostgres runs f on every PostgreSQL of $COTERIE_PG_BINDIRS, else on all that are installed.
func forEachPostgres(t *testing.T, f func(t *testing.T, s *rulesServer)) {
	t.Helper()
	dirs := filepath.SplitList(os.Getenv("COTERIE_PG_BINDIRS"))
	if len(dirs) == 0 {
		dirs, _ = filepath.Glob("/usr/lib/postgresql/*/bin")
	}
	if len(dirs) == 0 {
		t.Skip(errNoPostgres)
	}
	for _, bin := range dirs {
		out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "postgres"), "-V").Output()
		_, version, _ := strings.Cut(string(out), ") ")
		major, _, _ := strings.Cut(version, ".")
		n, errNumber := strconv.Atoi(major)
		if errors.Join(err, errNumber) != nil {
			t.Fatalf("%s says its version as %q: %v", bin, out, err)
		}
		t.Run(major, func(t *testing.T) { f(t, newRulesServer(t, bin, n)) })
	}
}

func newRulesServer(t *testing.T, bin string, major int) *rulesServer {
	t.Helper()
	root, err := os.MkdirTemp("/tmp", "coth")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	x := &rulesServer{t: t, major: major, file: filepath.Join(root, "hba.conf")}
	for _, err := range []error{os.Chmod(root, 0o755), os.Mkdir(filepath.Join(root, "d"), 0o755), os.Mkdir(filepath.Join(root, "conf.d"), 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range listFiles {
		x.write(filepath.Join(root, name), text)
	}
	x.write(filepath.Join(root, "conf.d", "one.conf"), listFiles["rules.conf"])
	x.write(x.file, "local all all trust\n")
	x.s = &server{name: "rules", dir: filepath.Join(root, "d"), port: freePort(t)}
	x.own(x.s.dir)
	x.run(bin, "initdb", "-N", "-A", "trust", "-U", "postgres", "--locale=C", "-E", "UTF8", x.s.dir+"/data")
	x.tls = x.run(bin, "postgres", "-D", x.s.dir+"/data", "-C", "ssl_library") != ""
	addresses := "127.0.0.1"
	if hasIPv6() {
		addresses += ",::1"
	}
	for _, setting := range []string{
		"listen_addresses=" + addresses, "hba_file=" + x.file, "log_connections=on", "log_line_prefix=", "password_encryption=md5", "autovacuum=off", "lc_messages=C", "jit=off",
	} {
		x.s.args = append(x.s.args, "-c", setting)
	}
	x.certify()
	if err := x.s.start(bin); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.s.stop)
	if x.admin, err = x.s.connect(t.Context(), "postgres"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.admin.Close(context.Background()) })
	for _, statement := range rolesOfRules(major) {
		x.exec(statement)
	}
	x.me, x.own4 = unixuser.Name(os.Geteuid()), ownAddress()
	if x.me != "postgres" {
		x.exec("create role " + pgx.Identifier{x.me}.Sanitize() + " login")
	}
	x.readRoles()
	return x
}

// certify gives a server that can have one a certificate, which counts as the authority of clients, too.
func (x *rulesServer) certify() {
	if !x.tls {
		return
	}
	cert, _ := certificate(x.t)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		x.t.Fatal(err)
	}
	var chain []byte
	for _, c := range cert.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c})...)
	}
	crt, private := filepath.Join(x.s.dir, "crt"), filepath.Join(x.s.dir, "key")
	x.write(crt, string(chain))
	x.write(private, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	if err := os.Chmod(private, 0o600); err != nil {
		x.t.Fatal(err)
	}
	x.own(crt)
	x.own(private)
	x.s.args = append(x.s.args, "-c", "ssl=on", "-c", "ssl_cert_file="+crt, "-c", "ssl_key_file="+private, "-c", "ssl_ca_file="+crt)
}

// rolesOfRules are statements that make the roles and some of the databases of the grammar.
func rolesOfRules(major int) (out []string) {
	name := func(s string) string { return pgx.Identifier{s}.Sanitize() }
	for _, r := range oddRoles {
		if r != "nobody here" {
			out = append(out, "create role "+name(r)+" login")
		}
	}
	without := ""
	if major >= 16 {
		without = " with inherit false, set false"
	}
	return append(
		out, "alter role "+name("ALICE")+" superuser", `alter role "replication" replication`,
		"alter role bob password 'right'", "set password_encryption = 'scram-sha-256'", "alter role alice password 'right'", "reset password_encryption",
		"grant staff to crew", "grant crew to bob"+without, `grant "Big Team" to alice, "Bob", "ALICE"`, `grant samerole to "two words"`, `grant alice to "café"`, `grant dbs to "Big Team"`,
		"create database app", `create database "My DB"`,
	)
}

// ownAddress returns an address of this machine, in a network if it has one.
func ownAddress() netip.Addr {
	list, _ := net.InterfaceAddrs()
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			return p.Addr()
		}
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

func hasIPv6() bool {
	l, err := net.Listen("tcp", "[::1]:0")
	if err == nil {
		_ = l.Close()
	}
	return err == nil
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// own gives a file to the server's user.
func (x *rulesServer) own(path string) {
	if os.Geteuid() != 0 {
		return
	}
	uid, gid, err := postgresUser()
	if err = cmp.Or(err, os.Chown(path, uid, gid)); err != nil {
		x.t.Fatal(err)
	}
}

func (x *rulesServer) write(path, text string) {
	x.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		x.t.Fatal(err)
	}
}

// run runs a program of PostgreSQL and returns what it prints.
func (x *rulesServer) run(bin, name string, args ...string) string {
	x.t.Helper()
	cmd := exec.CommandContext(x.t.Context(), filepath.Join(bin, name), args...)
	cmd.Dir = x.s.dir
	if err := asServer(cmd); err != nil {
		x.t.Fatal(err)
	}
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		x.t.Fatalf("%s: %v\n%s", name, err, problems.Bytes())
	}
	return strings.TrimSpace(string(out))
}

func (x *rulesServer) exec(statement string) {
	x.t.Helper()
	if _, err := x.admin.Exec(x.t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
		x.t.Fatalf("%s: %v", statement, err)
	}
}

// readRoles reads what rules and proofs need of the roles.
func (x *rulesServer) readRoles() {
	rows, err := x.admin.Query(x.t.Context(), `with recursive granted(role, oid) as (
			select member, roleid from pg_auth_members union select g.role, m.roleid from pg_auth_members m join granted g on m.member = g.oid)
		select rolname::text, coalesce(rolpassword, ''), rolcanlogin, rolsuper, rolreplication, array(select b.rolname::text from granted g join pg_authid b on b.oid = g.oid where g.role = a.oid order by 1) from pg_authid a`)
	if err != nil {
		x.t.Fatal(err)
	}
	x.roles = make(map[string]Role)
	var name string
	var r Role
	if _, err := pgx.ForEachRow(rows, []any{&name, &r.Password, &r.CanLogin, &r.Super, &r.Replication, &r.MemberOf}, func() error {
		r.Found = true
		x.roles[name] = r
		r.MemberOf = nil
		return nil
	}); err != nil {
		x.t.Fatal(err)
	}
}

// viewed is what PostgreSQL says of a line of rules.
type viewed struct {
	line    int
	rule    string // empty: there is none
	problem string
}

// view returns what pg_hba_file_rules has of the file with this text. The view reads the file; the server goes on with
// the rules that it has.
func (x *rulesServer) view(text string) (out []viewed) {
	x.t.Helper()
	x.write(x.file, text)
	rows, err := x.admin.Query(x.t.Context(), `select line_number, type, database, user_name, coalesce(address, ''), coalesce(netmask, ''), auth_method, options, coalesce(error, '')
		from pg_hba_file_rules where `+map[bool]string{true: "file_name = '" + x.file + "'", false: "true"}[x.major >= 16])
	if err != nil {
		x.t.Fatal(err)
	}
	var v viewed
	var address, mask string
	var kind, method *string
	var databases, users, options []string
	if _, err := pgx.ForEachRow(rows, []any{&v.line, &kind, &databases, &users, &address, &mask, &method, &options, &v.problem}, func() error {
		v.rule = ""
		if kind != nil {
			v.rule = fmt.Sprintf("%s %q %q %s %s %s", *kind, databases, users, masked(address, mask), *method, strings.Join(options, " "))
			v.problem = "" // of a rule that no connection of this server can match
		}
		out = append(out, v)
		return nil
	}); err != nil {
		x.t.Fatal(err)
	}
	return out
}

// masked returns the network of an address, as PostgreSQL shows both.
func masked(address, mask string) string {
	a, err := netip.ParseAddr(address)
	m, errMask := netip.ParseAddr(mask)
	if errors.Join(err, errMask) != nil {
		return address + mask
	}
	ones, size := net.IPMask(m.AsSlice()).Size()
	if size == 0 {
		return address + "/" + mask
	}
	return netip.PrefixFrom(a, ones).Masked().String()
}

// written returns one of this program's rules in the words of viewed.
func written(r hba.Rule) string {
	texts := func(names []hba.Name) (out []string) {
		for _, n := range names {
			out = append(out, n.Text)
		}
		return out
	}
	address, options := "", ""
	switch {
	case r.AnyAddress:
		address = "all"
	case r.SameHost:
		address = "samehost"
	case r.SameNet:
		address = "samenet"
	case r.Type != hba.TypeLocal:
		address = r.Address.String()
	}
	if r.ClientCert != "" {
		options = "clientcert=" + r.ClientCert
	}
	return fmt.Sprintf("%s %q %q %s %s %s", r.Type, texts(r.Databases), texts(r.Users), address, r.Method, options)
}
