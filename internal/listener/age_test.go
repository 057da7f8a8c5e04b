package listener

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/hba"
)

// While the primary does not answer, a copy decides about readers only as long as it is known to be recent enough.
func TestOldCopyJudgesNobody(t *testing.T) {
	var age atomic.Int64
	g := newGroup(t, func(c *Config) { c.AuthStaleness = 10 * time.Second })
	g.role("alice", "login password 'secret'")
	ask := g.srv.cfg.Verifier
	g.srv.cfg.Verifier = func(ctx context.Context, id ag.ReplicaID, user string) (Role, error) {
		if id == "a" {
			return Role{}, errors.New("silent")
		}
		role, err := ask(ctx, id, user)
		role.Age = time.Duration(age.Load())
		return role, err
	}
	g.mustDial(g.ro, "user=alice password=secret")
	for _, old := range []time.Duration{11 * time.Second, UnknownAge} {
		age.Store(int64(old))
		if _, err := g.dial(g.ro, "user=alice password=secret"); sqlstate(err) != "57P03" {
			t.Errorf("a copy %v old: %v", old, err)
		}
	}
	if n := g.srv.Stats().Rejected["stale roles"]; n != 2 {
		t.Errorf("%d refusals were counted", n)
	}
	none := fullRoutes(1)
	none.Primary, none.WriteOpen = "", false
	g.publish(none)
	if _, err := g.dial(g.ro, "user=alice password=secret"); sqlstate(err) != "57P03" {
		t.Errorf("without a primary: %v", err)
	}
	age.Store(int64(time.Second))
	g.mustDial(g.ro, "user=alice password=secret")
}

// The primary decides about memberships that a rule requires: a copy may not have replayed the GRANT yet.
func TestMembersAreJudgedByThePrimary(t *testing.T) {
	rules, err := hba.Parse(strings.NewReader("host all +suspended all reject\nhost all all all trust\n"))
	if err != nil {
		t.Fatal(err)
	}
	g := newGroup(t, func(c *Config) { c.Rules = rules })
	g.role("alice", "login")
	ask := g.srv.cfg.Verifier
	g.srv.cfg.Verifier = func(ctx context.Context, id ag.ReplicaID, user string) (Role, error) {
		role, err := ask(ctx, id, user)
		if id == "a" {
			role.MemberOf = append(role.MemberOf, "suspended")
		}
		return role, err
	}
	if _, err := g.dial(g.ro, "user=alice"); sqlstate(err) != "28000" {
		t.Errorf("suspended on the primary: %v", err)
	}
}
