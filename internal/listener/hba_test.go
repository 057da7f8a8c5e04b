package listener

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParseHBA(t *testing.T) {
	rules, err := ParseHBA(strings.NewReader(`
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
		"host all all all ldap":                              "method ldap cannot be checked",
		"host all all all gss include_realm=0":               "method gss cannot be checked",
		"host all all all password":                          "use scram-sha-256",
		"host all +admins all md5":                           "membership in a role",
		"host samerole all all md5":                          "membership in a role",
		"host @dbs all all md5":                              "lists in files",
		"host /^a all all md5":                               "regular expressions",
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
		"host all, ":                                         "comma",
		"host ,a all all md5":                                "comma",
		"include other.conf":                                 "include",
		"include_dir conf.d":                                 "include_dir",
		"host,local all all all md5":                         "may not be a list",
		"host all all all md5,trust":                         "may not be a list",
		`host all "" all md5`:                                "empty user",
		"hostssl all all all cert clientcert=verify-ca":      "in full",
		"hostssl all all all scram-sha-256 clientcert=maybe": "verify-ca and verify-full",
	} {
		_, err := ParseHBA(strings.NewReader("# first\n" + line + "\nlocal all all trust\n"))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "line 2: ") {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestMatchRule(t *testing.T) {
	rules, err := ParseHBA(strings.NewReader(`
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
		l    login
		line int // 0 = none
	}{
		{login{local: true, user: "postgres", database: "x"}, 2},
		{login{local: true, user: "other", database: "x"}, 0},
		{login{addr: addr("10.9.9.9"), tls: true, user: "web", database: "app"}, 3},
		{login{addr: addr("10.9.9.9"), user: "web", database: "app"}, 4},
		{login{addr: addr("11.9.9.9"), user: "web", database: "app"}, 0},
		{login{addr: addr("::1"), user: "u", database: "u"}, 5},
		{login{addr: addr("::1"), user: "u", database: "v"}, 0},
		{login{addr: addr("9.9.9.9"), user: "u", database: "sameuser"}, 6},
		{login{addr: addr("127.0.0.1"), user: "copier", database: "", replication: replicationPhysical}, 7},
		{login{addr: addr("127.0.0.1"), user: "copier", database: "replication"}, 0},
		{login{addr: addr("1.2.3.4"), user: "u", database: "d"}, 8},
		{login{addr: addr("1.2.3.4"), tls: true, user: "u", database: "d"}, 9},
		{login{addr: addr("1.2.3.4"), tls: true, user: "u", replication: replicationPhysical}, 0},
		{login{addr: addr("127.5.5.5"), user: "gw", database: "d"}, 10},
	}
	for _, c := range cases {
		r, ok := matchRule(rules, c.l)
		if ok != (c.line != 0) || ok && r.Line != c.line {
			t.Errorf("%+v matched line %d", c.l, r.Line)
		}
	}
	if r, ok := matchRule(DefaultRules(true), login{addr: addr("9.9.9.9"), user: "u"}); ok {
		t.Errorf("without TLS matched %+v", r)
	}
}

func FuzzHBA(f *testing.F) {
	f.Add("host all all all scram-sha-256\nlocal all all peer")
	f.Add("hostssl \"a b\",c +x 1.2.3.4 255.255.0.0 cert clientcert=verify-full # x")
	f.Add("host \\\n all , \"\"\"\" ::/0 md5\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := ParseHBA(strings.NewReader(text))
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
		matchRule(rules, login{addr: netip.MustParseAddr("1.2.3.4"), user: "u", database: "d"})
	})
}
