package clientport

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/listener/hba"
)

// TestSettings holds that a node tells by which rules it judges logins, and not those that a file would have. Rules
// with the same meaning are the same on two nodes.
func TestSettings(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "hba.conf")
	write(t, file, "# mine\nhost all bob  all scram-sha-256\n")
	told := func(p *Port, name string) (value, source string) {
		for _, s := range p.Settings() {
			if s.Name == name {
				return s.Value, s.Source
			}
		}
		return "", ""
	}
	n := primary()
	n.group.HBA = "host all bob all scram-sha-256\n"
	own, group := n.port(t, func(c *config.Config) { c.HBA, c.ReadWrite.Listen = file, "127.0.0.1:0" }), n.port(t, func(c *config.Config) {
		c.TLSOnly, c.ReadWrite.Listen = true, "127.0.0.1:0"
	})
	if s := own.Settings(); s != nil {
		t.Errorf("before it serves clients: %v", s)
	}
	opened(t, own)
	opened(t, group)
	a, fromA := told(own, "coterie.hba")
	b, fromB := told(group, "coterie.hba")
	if a != b || !strings.HasPrefix(a, "1 rule, ") || fromA != file || fromB != ofTheGroup {
		t.Errorf("%q from %s, and %q from %s", a, fromA, b, fromB)
	}
	if v, _ := told(group, "coterie.tls_only"); v != "on" {
		t.Errorf("tls_only is %q", v)
	}
	if v, from := told(own, "coterie.client_ca"); v != "none" || from != "coterie.yaml" {
		t.Errorf("client_ca is %q from %s", v, from)
	}
	write(t, file, "host all\n")
	if err := own.Restart(); err == nil {
		t.Error("wrong rules are taken")
	}
	if v, _ := told(own, "coterie.hba"); v != a {
		t.Errorf("rules that are not in force are told: %q", v)
	}
	n.group.HBA = ""
	group.GroupChanged()
	if v, from := told(group, "coterie.hba"); from != byDefault || v != "2 rules, "+hba.Digest(hba.DefaultRules(true)) {
		t.Errorf("by default it tells %q from %s", v, from)
	}
}

// TestJudgeRules holds which rules of a group are refused, and what is said of others.
func TestJudgeRules(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"hostssl all all all scram-sha-256\n":         "",
		"local all all peer\nhost all all all ldap\n": "line 2: method ldap",
		"host all @admins all md5\n":                  "line 1: ",
		"host all all all reject\n":                   "admit nobody from the network",

		"host all all 10.0.0.0/8 md5\n":    "no address from which a session or a member comes now, such as 192.0.2.7",
		"host all all 192.0.2.0/24 md5\n":  "",
		"host all all fd00::/8 md5\n":      "",
		"host all app samenet md5\n":       "",
		"hostssl app app 192.0.2.7/32 md5": "",

		"host all all all reject\nhost all all 192.0.2.0/24 md5\n": "no address from which",
		"host all app all reject\nhost all all 192.0.2.0/24 md5\n": "",
		"hostssl all all all cert\n":                               "no client_ca",
	} {
		warnings, err := primary().port(t).JudgeRules(text, []netip.Addr{netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("fd00::7")})
		said := strings.Join(warnings, "\n")
		if err != nil {
			said = err.Error()
		}
		if !strings.Contains(said, want) || want == "" && said != "" || strings.HasPrefix(want, "line") != (err != nil) {
			t.Errorf("%q: %v, %v", text, warnings, err)
		}
	}
}
