package listener

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/listener/hba"
)

// The server that will run the session decides about memberships.
func TestMembershipRule(t *testing.T) {
	rules, err := hba.Parse(strings.NewReader("host all +staff all trust\nhost all all all reject\n"))
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, func(c *Config) { c.Rules = rules })
	g.role("staff", "nologin")
	g.role("crew", "nologin in role staff")
	g.role("ann", "login in role crew")
	g.role("bob", "login")
	if _, err := g.dial(g.rw, "user=bob"); sqlstate(err) != "28000" {
		t.Errorf("bob: %v", err)
	}
	g.mustDial(g.rw, "user=ann")
	if _, err := g.dial(g.rw, "user=postgres"); sqlstate(err) != "28000" {
		t.Errorf("a superuser is a member of what was granted to it: %v", err)
	}
}
