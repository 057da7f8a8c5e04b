package listener

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
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

// A copy keeps its replayed WAL when the primary has died: its age counts from there.
func TestAgeOfACopy(t *testing.T) {
	at := &standings{at: map[ag.ReplicaID]Progress{"a": {1, 1000}, "b": {1, 900}}}
	routes := fullRoutes(1)
	routes.Self = "b"
	s, err := New(Config{
		Routes: func() *ag.Routes { return routes }, Position: at.of,
		Backend:  func(context.Context, ag.ReplicaID, BackendHello) (net.Conn, error) { return nil, errors.New("none") },
		Verifier: func(context.Context, ag.ReplicaID, string) (Role, error) { return Role{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Shutdown(t.Context())
	s.lookAge()
	if s.Age() != UnknownAge {
		t.Errorf("behind by nobody knows what: %v", s.Age())
	}
	marked := boottime.Now()
	at.set("a", Progress{1, 2000})
	at.set("b", Progress{1, 1000})
	s.lookAge()
	if age := s.Age(); age == UnknownAge || age < boottime.Now()-marked {
		t.Errorf("it has what was there before the primary went on: %v", age)
	}
	was := s.current.Load()
	at.set("b", Progress{2, 5000})
	s.lookAge()
	at.at = nil // no more answers
	s.lookAge()
	if s.current.Load() != was {
		t.Error("silence or another history has changed what was known")
	}
	routes = &ag.Routes{Epoch: 2, Self: "b", Primary: "b", WriteOpen: true}
	s.lookAge()
	if s.Age() > time.Minute || s.current.Load() <= was {
		t.Errorf("as the primary: %v", s.Age())
	}
}
