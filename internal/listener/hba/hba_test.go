package hba

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

func TestParseHBA(t *testing.T) {
	rules, err := Parse(strings.NewReader(`
# TYPE  DATABASE        USER            ADDRESS                 METHOD
local   all             all                                     peer
host    all             all             127.0.0.1/32            scram-sha-256   # loopback
hostssl "all","a b"     bob, "eve#1"    10.1.2.3 255.0.0.0      cert
hostnossl sameuser      all             ::/0                    reject
host    replication     all             samehost                md5
host    app             \
        web             all             trust
hostgssenc all all 0.0.0.0/0 scram-sha-256
hostssl all all samenet scram-sha-256 clientcert=verify-ca
`))
	if err != nil {
		t.Fatal(err)
	}
	if len(rules) != 8 {
		t.Fatalf("%d rules", len(rules))
	}
	if r := rules[2]; r.Line != 5 || r.Address != netip.MustParsePrefix("10.0.0.0/8") || r.ClientCert != "verify-full" ||
		len(r.Databases) != 2 || r.Databases[1].Text != "a b" || r.Users[1].Text != "eve#1" {
		t.Errorf("rule 3: %+v", r)
	}
	if r := rules[5]; r.Line != 8 || r.Users[0].Text != "web" || !r.AnyAddress || r.Method != MethodTrust {
		t.Errorf("rule 6: %+v", r)
	}
}

func TestParseHBARefuses(t *testing.T) {
	for line, want := range map[string]string{
		"host all all all gss include_realm=0":               "method gss cannot be checked",
		"host all all all password":                          "use scram-sha-256",
		"host +admins all all md5":                           "databases have none",
		"host all + all md5":                                 "empty user",
		"host @dbs all all md5":                              "lists in files",
		"host /^(a all all md5":                              "not closed",
		"host all all example.org md5":                       "host names",
		"host all all .example.org md5":                      "host names",
		"host all all 10.0.0.0 md5":                          "mask",
		"host all all 10.0.0.0 255.0.255.0 md5":              "mask",
		"host all all 10.0.0.0/33 md5":                       "not of the form",
		"host all all all peer":                              "over the network",
		"host all all all cert":                              "only supported on hostssl",
		"host all all all md5 clientcert=verify-ca":          "hostssl",
		"hostssl all all all cert map=m":                     "option",
		"local all peer":                                     "method is missing",
		"tcp all all all md5":                                "unknown connection type",
		"host all all all":                                   "method is missing",
		"host all all all magic":                             "unknown method",
		`host all "open all md5`:                             "quote",
		"host all, ":                                         "needs type",
		"host all \x00all all md5":                           "a NUL byte",
		"host @dbs,a all all md5":                            "lists in files",
		"host all all @nets md5":                             "may not come from a file",
		"host all all fe80::1%lo ffff:: md5":                 "zone",
		"host all all fe80::1 ffff::%lo md5":                 "mask",
		`"include" other.conf`:                               "include",
		"include other.conf":                                 "include",
		"include_dir conf.d":                                 "include_dir",
		"host,local all all all md5":                         "may not be a list",
		"host all all all md5,trust":                         "may not be a list",
		`host all "" all md5`:                                "empty user",
		"hostssl all all all cert clientcert=verify-ca":      "in full",
		"hostssl all all all scram-sha-256 clientcert=maybe": "verify-ca and verify-full",
	} {
		_, err := Parse(strings.NewReader("# first\n" + line + "\nlocal all all trust\n"))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "line 2: ") {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// Methods that the listener does not have are documented limits: the refusal names the method and the alternative, as
// the documentation does.
func TestMethodsThatThereAreNot(t *testing.T) {
	docs, err := os.ReadFile("../../../docs/connecting.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"ldap", "pam", "gss", "sspi", "radius", "bsd", "oauth", "password"} {
		want := "line 1: method " + method + " cannot be checked by the listener: use scram-sha-256 or cert"
		if _, err := Parse(strings.NewReader("host all all all " + method + " ldapserver=ldap.example.com\n")); err == nil || err.Error() != want {
			t.Errorf("%s: %v", method, err)
		}
		if text, _, _ := strings.Cut(strings.TrimPrefix(want, "line 1: "), ":"); !strings.Contains(string(docs), text) {
			t.Errorf("docs/connecting.md does not say %q", text)
		}
	}
}

func TestMatchRule(t *testing.T) {
	rules, err := Parse(strings.NewReader(`
local   all         postgres            peer
hostssl app         web     10.0.0.0/8  cert
host    app         web     10.0.0.0/8  reject
host    sameuser    all     ::1/128     md5
host    "sameuser"  all     all         trust
host    replication copier  samehost    md5
hostnossl all       all     1.2.3.4/32  reject
host    all         all     1.2.3.4/32  scram-sha-256
host    all         gw      samenet     md5
`))
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr
	cases := []struct {
		l    Login
		line int // 0 = none
	}{
		{Login{Local: true, User: "postgres", Database: "x"}, 2},
		{Login{Local: true, User: "other", Database: "x"}, 0},
		{Login{Addr: addr("10.9.9.9"), TLS: true, User: "web", Database: "app"}, 3},
		{Login{Addr: addr("10.9.9.9"), User: "web", Database: "app"}, 4},
		{Login{Addr: addr("11.9.9.9"), User: "web", Database: "app"}, 0},
		{Login{Addr: addr("::1"), User: "u", Database: "u"}, 5},
		{Login{Addr: addr("::1"), User: "u", Database: "v"}, 0},
		{Login{Addr: addr("9.9.9.9"), User: "u", Database: "sameuser"}, 6},
		{Login{Addr: addr("127.0.0.1"), User: "copier", Database: "", Replication: pgwire.ReplicationPhysical}, 7},
		{Login{Addr: addr("127.0.0.1"), User: "copier", Database: "replication"}, 0},
		{Login{Addr: addr("1.2.3.4"), User: "u", Database: "d"}, 8},
		{Login{Addr: addr("1.2.3.4"), TLS: true, User: "u", Database: "d"}, 9},
		{Login{Addr: addr("1.2.3.4"), TLS: true, User: "u", Replication: pgwire.ReplicationPhysical}, 0},
		{Login{Addr: addr("127.5.5.5"), User: "gw", Database: "d"}, 10},
	}
	for _, c := range cases {
		r, ok := Match(rules, c.l)
		if ok != (c.line != 0) || ok && r.Line != c.line {
			t.Errorf("%+v matched line %d", c.l, r.Line)
		}
	}
	if r, ok := Match(DefaultRules(true), Login{Addr: addr("9.9.9.9"), User: "u"}); ok {
		t.Errorf("without TLS matched %+v", r)
	}
}

// +role, samerole, regular expressions and lists in files, as PostgreSQL reads them.
func TestNamesOfRules(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("empty", "# nothing\n")
	write("includes", "include dbs\n")
	write("nul", "a\x00\n")
	write("nested", "@dbs\n")
	write("folded", "o\\\nne\rtwo\r\r\n,three \\")
	write("dbs", "one, two\n# nothing\nthree \"four 4\"\n")
	rules, err := ParseFile(write("hba", "host @dbs all all trust\nhost all +admins all md5\nhost samerole all all scram-sha-256\nhost \"/^db\\d+$\" /^app_ all trust\nhost all \"+literal\" all reject\n"))
	if err != nil {
		t.Fatal(err)
	}
	if !NeedsMemberships(rules) || NeedsMemberships(rules[3:]) {
		t.Error("who is asked for memberships")
	}
	at := netip.MustParseAddr("9.9.9.9")
	for _, c := range []struct {
		l    Login
		line int
	}{
		{Login{User: "u", Database: "three"}, 1},
		{Login{User: "u", Database: "four 4"}, 1},
		{Login{User: "u", Database: "dbs"}, 0},
		{Login{User: "u", Database: "x", MemberOf: []string{"admins"}}, 2},
		{Login{User: "admins", Database: "x", MemberOf: []string{"admins"}}, 2},
		{Login{User: "admins", Database: "x"}, 0}, // there is no such role
		{Login{User: "u", Database: "team", MemberOf: []string{"team"}}, 3},
		{Login{User: "u", Database: "u", MemberOf: []string{"u"}}, 3},
		{Login{User: "u", Database: "u"}, 0},
		{Login{User: "app_web", Database: "db12"}, 4},
		{Login{User: "app_web", Database: "db12x"}, 0},
		{Login{User: "my_app_", Database: "db1"}, 0},
		{Login{User: "+literal", Database: "x"}, 5},
		{Login{User: "u", Database: "x", MemberOf: []string{"literal"}}, 0},
	} {
		c.l.Addr = at
		r, ok := Match(rules, c.l)
		if ok != (c.line != 0) || ok && r.Line != c.line {
			t.Errorf("%+v matched line %d, want %d", c.l, r.Line, c.line)
		}
	}
	for list, why := range map[string]string{
		"missing": "@missing", "empty": "the list is empty", "includes": "include is not supported", "nul": "a NUL byte", "nested": "lists in files are not supported",
	} {
		if _, err := ParseFile(write("hba", "host @"+list+" all all md5\n")); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("the list %s: %v", list, err)
		}
	}
	rules, err = ParseFile(write("hba", "host @folded all all md5\n"))
	if err != nil || fmt.Sprint(rules[0].Databases) != "[{one false <nil>} {two false <nil>} {three false <nil>}]" {
		t.Errorf("%v %v", rules, err)
	}
}

func FuzzHBA(f *testing.F) {
	f.Add("host all all all scram-sha-256\nlocal all all peer")
	f.Add("hostssl \"a b\",c +x 1.2.3.4 255.255.0.0 cert clientcert=verify-full # x")
	f.Add("host \\\n all , \"\"\"\" ::/0 md5\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, r := range rules {
			if r.Line < 1 || r.Method == "" || len(r.Databases) == 0 || len(r.Users) == 0 {
				t.Fatalf("%q gave %+v", text, r)
			}
			if r.Type != TypeLocal && !r.AnyAddress && !r.SameHost && !r.SameNet && !r.Address.IsValid() {
				t.Fatalf("%q gave no address: %+v", text, r)
			}
		}
		Match(rules, Login{Addr: netip.MustParseAddr("1.2.3.4"), User: "u", Database: "d"})
	})
}

// TestContinuedLines: a backslash at the end of a line joins the next one, as in PostgreSQL, and a file of such lines
// takes no long.
func TestContinuedLines(t *testing.T) {
	for text, want := range map[string]string{
		"local \\\nall \\\r\nall peer\n":          "1 local all all peer",
		"local all all peer\\":                    "1 local all all peer",
		"local all all peer\\\n":                  "1 local all all peer",
		"local all all peer\nlocal a b peer":      "1 local all all peer|2 local a b peer",
		"local all \\\r\r\nall peer\r\r\n\nlocal": "1 local all all peer|4 local",
		"local all\rall peer\r":                   "1 local all\rall peer",
		"local a\\\\\n\\\nall":                    "1 local a\\all",
		"local a\\\\\n\nall":                      "1 local a\\|3 all",
		"# no \\\nlocal all all trust\nlocal":     "1 # no local all all trust|3 local",
		"\\":                                      "",
	} {
		var lines []string
		for n, line := range joined(text) {
			if line != "" {
				lines = append(lines, fmt.Sprint(n, " ", line))
			}
		}
		if got := strings.Join(lines, "|"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	rules, err := Parse(strings.NewReader("local a\\\nll all peer\n\nhost all\\\n all \\\nall trust\n"))
	if err != nil || len(rules) != 2 || rules[0].Line != 1 || rules[1].Line != 4 {
		t.Errorf("%v, %v", rules, err)
	}
	long := "# " + strings.Repeat("x\\\n", maxRules/3-1) // took minutes
	took := time.Hour
	for i := 0; i < 3 && took > time.Second; i++ { // the machine may have been busy
		began := time.Now()
		if _, err := Parse(strings.NewReader(long)); err == nil || !strings.Contains(err.Error(), "no rule") {
			t.Fatal(err)
		}
		took = min(took, time.Since(began))
	}
	if took > time.Second {
		t.Errorf("%d bytes take %v", len(long), took)
	}
}
