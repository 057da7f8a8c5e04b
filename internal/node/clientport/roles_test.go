package clientport

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/postgres/login"
)

// TestFirstCurrent holds that the leader's word about a role counts whatever its age, and a copy's only while the copy
// is known to be young.
func TestFirstCurrent(t *testing.T) {
	type answers map[ag.ReplicaID]any // time.Duration: the copy's age; error
	dead := errors.New("dead")
	for name, c := range map[string]struct {
		leader ag.ReplicaID
		said   answers
		from   string // "": no role
	}{
		"the leader answers":      {"n2", answers{"n2": listener.UnknownAge, "n1": time.Duration(0)}, "n2"},
		"a young copy":            {"n2", answers{"n2": dead, "n1": 59 * time.Second}, "n1"},
		"an old copy":             {"n2", answers{"n2": dead, "n1": 61 * time.Second}, ""},
		"the old one is not last": {"n2", answers{"n2": dead, "n1": listener.UnknownAge, "n3": time.Second}, "n3"},
		"no leader is known":      {"", answers{"n2": listener.UnknownAge, "n1": listener.UnknownAge}, ""},
	} {
		role, err := firstCurrent([]ag.ReplicaID{"n2", "n1", "n3"}, c.leader, time.Minute, func(id ag.ReplicaID) (listener.Role, error) {
			switch x := c.said[id].(type) {
			case time.Duration:
				return listener.Role{Found: true, Password: string(id), Age: x}, nil
			case error:
				return listener.Role{}, x
			}
			return listener.Role{}, dead
		})
		if role.Password != c.from || (err == nil) != (c.from != "") {
			t.Errorf("%s: %q, %v", name, role.Password, err)
		}
	}
}

// TestVerifier holds where the facts of a role come from, and that a role that does not exist is an answer while a node
// that does not answer is an error.
func TestVerifier(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, tt := range map[string]struct {
		at    ag.ReplicaID
		err   error // of the server that is asked
		found bool
		want  error
	}{
		"its own":                     {"n1", nil, true, nil},
		"its own, unknown":            {"n1", login.ErrNoRole, false, nil},
		"its own server fails":        {"n1", broken, false, broken},
		"another's":                   {"n2", nil, true, nil},
		"another's, unknown":          {"n2", &endpoint.RemoteError{Message: login.ErrNoRole.Error()}, false, nil},
		"another says something else": {"n2", &endpoint.RemoteError{Message: "the server starts"}, false, &endpoint.RemoteError{}},
		"another does not answer":     {"n2", errNoRoute, false, errNoRoute},
	} {
		n := primary()
		n.server.role, n.server.roleErr = login.Role{Password: "secret", CanLogin: true, Rounds: 9}, tt.err
		n.peers.role = func(ag.ReplicaID) (login.Role, time.Duration, error) { return n.server.role, 3 * time.Second, tt.err }
		r, err := n.port(t).verifier(t.Context(), tt.at, "app")
		var remote *endpoint.RemoteError
		if r.Found != tt.found || !errors.Is(err, tt.want) && !(errors.As(tt.want, &remote) && errors.As(err, &remote)) || (r.Password == "secret") != tt.found {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if (tt.want == nil) != (r.Rounds == 9) {
			t.Errorf("%s: %d rounds", name, r.Rounds)
		}
		if age := map[ag.ReplicaID]time.Duration{"n1": listener.UnknownAge, "n2": 3 * time.Second}[tt.at]; tt.found && r.Age != age {
			t.Errorf("%s: %v old, want %v", name, r.Age, age)
		}
		if asked := len(n.peers.asked) != 0; asked != (tt.at == "n2") {
			t.Errorf("%s: asked %v", name, n.peers.asked)
		}
	}
	n := primary()
	if _, err := n.port(t).verifier(t.Context(), "n9", "app"); err == nil || !strings.Contains(err.Error(), "the group has no replica n9") {
		t.Errorf("at a replica that does not exist: %v", err)
	}
	n.server = nil
	if _, err := n.port(t).verifier(t.Context(), "n1", "app"); !errors.Is(err, errNoServer) {
		t.Errorf("at a witness: %v", err)
	}
}

// TestRoleOf holds that no limit of a role's validity becomes another: "-infinity" is long ago, and none is none.
func TestRoleOf(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tt := range map[string]struct {
		until *time.Time
		want  time.Time
	}{
		"none":      {nil, time.Time{}},
		"a moment":  {&at, at},
		"-infinity": {&time.Time{}, time.Unix(1, 0)},
	} {
		if got := roleOf(login.Role{ValidUntil: tt.until, Super: true, MemberOf: []string{"a"}}); !got.ValidUntil.Equal(tt.want) || !got.Found || !got.Super || len(got.MemberOf) != 1 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestConsoleRole holds who is asked about a role that logs in to the console: the primary, then this node, then the
// other replicas, and never a witness. auth_staleness bounds what a copy may say.
func TestConsoleRole(t *testing.T) {
	t.Parallel()
	n := secondary()
	n.group.Replicas = append(n.group.Replicas, ag.Replica{ID: "n0"})
	n.server.roleErr = errors.New("the server starts")
	n.peers.role = func(to ag.ReplicaID) (login.Role, time.Duration, error) {
		if to == "n0" {
			return login.Role{Password: "n0"}, 5 * time.Second, nil
		}
		return login.Role{}, 0, errNoRoute
	}
	p := n.port(t, func(c *config.Config) { c.AuthStaleness = 5 * time.Second })
	if r, err := p.consoleRole(t.Context(), "admin"); err != nil || r.Password != "n0" || !slices.Equal(n.peers.asked, []ag.ReplicaID{"n2", "n3", "n0"}) {
		t.Errorf("%+v, %v, asked %v", r, err, n.peers.asked)
	}
	p = n.port(t, func(c *config.Config) { c.AuthStaleness = 4 * time.Second })
	if r, err := p.consoleRole(t.Context(), "admin"); err == nil || r.Found || !strings.Contains(err.Error(), "replica n0 may be too old") || !strings.Contains(err.Error(), "the server starts") {
		t.Errorf("too old: %+v, %v", r, err)
	}
	n.group = nil
	if order := p.askOrder("n2"); !slices.Equal(order, []ag.ReplicaID{"n1"}) {
		t.Errorf("no group is known: %v", order)
	}
}

// TestKeepRoles holds that the console's roles are created once in each epoch in which this node takes writes, again
// after a failure, and never elsewhere.
func TestKeepRoles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := primary()
		made, fail := 0, errors.New("starting")
		n.server.ensure = func() (err error) {
			n.change(func() { made++; err = fail })
			return err
		}
		p := n.port(t)
		done := make(chan error, 1)
		ctx, stop := context.WithCancel(t.Context())
		go func() { done <- p.KeepRoles(ctx) }()
		synctest.Wait()
		for i, step := range []struct {
			change func()
			want   int
		}{
			{func() {}, 0},                                                     // no plan yet
			{func() { n.plan = &ag.Plan{} }, 0},                                // not open
			{func() { n.plan = &ag.Plan{Open: true} }, 1},                      // fails
			{func() { fail = nil }, 2},                                         // again
			{func() {}, 2},                                                     // done in this epoch
			{func() { n.view.Record.Epoch.Epoch = 8 }, 3},                      // the next
			{func() { n.plan = &ag.Plan{}; n.view.Record.Epoch.Epoch = 9 }, 3}, // another leads
		} {
			n.change(step.change)
			time.Sleep(rolesEvery)
			synctest.Wait()
			if made != step.want {
				t.Errorf("after step %d they were created %d times, want %d", i, made, step.want)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		n.server = nil
		if err := n.port(t).KeepRoles(ctx); err != nil {
			t.Errorf("on a witness: %v", err)
		}
	})
}

// TestLook holds that a role which may not log in any more may do nothing at the console, for whatever reason.
func TestLook(t *testing.T) {
	t.Parallel()
	past, later := time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	for name, tt := range map[string]struct {
		role login.Role
		err  error
		want ddl.Privilege
	}{
		"it may":                            {login.Role{CanLogin: true}, nil, ddl.MayLook},
		"its password holds for an hour":    {login.Role{CanLogin: true, ValidUntil: &later}, nil, ddl.MayLook},
		"its password has expired":          {login.Role{CanLogin: true, ValidUntil: &past}, nil, ddl.MayNothing},
		"its password expired at -infinity": {login.Role{CanLogin: true, ValidUntil: &time.Time{}}, nil, ddl.MayNothing},
		"it has NOLOGIN":                    {login.Role{}, nil, ddl.MayNothing},
		"it is gone":                        {login.Role{}, login.ErrNoRole, ddl.MayNothing},
	} {
		n := primary()
		tt.role.MemberOf = []string{"coterie_viewer"}
		n.server.role, n.server.roleErr = tt.role, tt.err
		if a, err := n.port(t).Look(t.Context(), "vera"); err != nil || a.May != tt.want || a.User != "vera" {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
}

// TestMayNow holds what a role in a session of the console may do later: an expired password ends no session, and
// where nobody can be asked the last answer counts only while the group has no primary.
func TestMayNow(t *testing.T) {
	t.Parallel()
	past, silent := time.Now().Add(-time.Minute), errors.New("the server starts")
	for name, tt := range map[string]struct {
		role    login.Role
		err     error
		primary bool
		want    ddl.Privilege
		fails   bool
	}{
		"it may operate":            {login.Role{CanLogin: true, MemberOf: []string{"coterie_operator"}}, nil, true, ddl.MayOperate, false},
		"its password has expired":  {login.Role{CanLogin: true, ValidUntil: &past, MemberOf: []string{"coterie_viewer"}}, nil, true, ddl.MayLook, false},
		"it has NOLOGIN":            {login.Role{MemberOf: []string{"coterie_operator"}}, nil, true, ddl.MayNothing, false},
		"it is gone":                {login.Role{}, login.ErrNoRole, true, ddl.MayNothing, false},
		"nobody answers":            {login.Role{}, silent, true, ddl.MayAdminister, true},
		"nobody answers, or leads":  {login.Role{}, silent, false, ddl.MayAdminister, false},
		"it lost all while no lead": {login.Role{CanLogin: true}, nil, false, ddl.MayNothing, false},
	} {
		n := primary()
		n.server.role, n.server.roleErr = tt.role, tt.err
		n.peers.role = func(ag.ReplicaID) (login.Role, time.Duration, error) { return login.Role{}, 0, silent }
		p := n.port(t)
		p.Publish(&ag.Routes{Primary: "n1", WriteOpen: tt.primary})
		if may, err := p.mayNow(t.Context(), "olaf", ddl.MayAdminister); may != tt.want || (err != nil) != tt.fails {
			t.Errorf("%s: %v, %v", name, may, err)
		}
	}
}
