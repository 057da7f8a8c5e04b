package clientport

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/listener/hba"
)

// Bounds of logins at a witness. A caller without a certificate of a known authority is refused before any of them.
const (
	mostViewers   = 64             // that are remembered
	rememberedFor = 12 * time.Hour // as long as a session lasts
)

// Questions about roles that callers with a certificate may cause at other nodes, of one address and of all.
var (
	eachViewers = admission.Rate{PerSecond: 2, Burst: 20}
	allViewers  = admission.Rate{PerSecond: 10, Burst: 100}
)

// Viewer is what a replica tells a witness of a role: no verifier, and nothing that the role may change.
type Viewer struct {
	Looks    bool          // it may log in, and look at the console
	MemberOf []string      // for rules that name such roles; nil unless Looks
	Age      time.Duration // of the copy that says so
}

// watch is what lets users look at the console of a witness: rules, and what replicas said of roles.
type watch struct {
	rules  atomic.Pointer[[]hba.Rule] // nil: not read yet
	budget *admission.Budget

	mu     sync.Mutex // guards viewed
	viewed *admission.Recent[string, viewed]
}

// viewed is a role that may look, as a replica said last.
type viewed struct {
	role listener.Role
	at   time.Duration // of boottime
}

func newWatch() *watch {
	return &watch{budget: admission.NewBudget(eachViewers, allViewers, 2*mostViewers), viewed: admission.NewRecent[string, viewed](mostViewers)}
}

// openWatch reads what a login at the console of a witness is judged by, and keeps it read.
func (p *Port) openWatch(run func(name string, part func(context.Context) error)) {
	_ = p.loadClientCertificates() // noted: nobody is admitted until they can be read
	rules := p.firstRules()
	p.watch.rules.Store(&rules)
	if p.c.Node.ClientCA == "" {
		p.c.Logger.Warn("nobody can log in at this witness's console: a witness keeps no passwords. Name the authorities of client certificates with client_ca in coterie.yaml, or use the console of a replica")
	}
	run("files of the console", p.keepFiles)
}

// Viewer returns what a witness is told of a role, as this node's server has it.
func (p *Port) Viewer(ctx context.Context, user string) (Viewer, error) {
	role, age, err := p.Role(ctx, user)
	if err != nil && !isNoRole(err) {
		return Viewer{}, err
	}
	r := roleOf(role)
	expired := !r.ValidUntil.IsZero() && time.Now().After(r.ValidUntil)
	if err != nil || !r.CanLogin || expired || console.PrivilegeOf(r.Super, user, r.MemberOf) < ddl.MayLook {
		return Viewer{Age: age}, nil
	}
	return Viewer{Looks: true, MemberOf: r.MemberOf, Age: age}, nil
}

// viewer returns a role as the replicas know it: by the primary's word, else by that of a young copy, else by the last
// one that this witness heard: when no replica is left the witness is the one to ask.
func (p *Port) viewer(ctx context.Context, user string) (listener.Role, error) {
	var leader ag.ReplicaID
	if s := p.c.Snapshot(); s != nil {
		leader = s.Record.Epoch.Leader
	}
	ask := func(id ag.ReplicaID) (listener.Role, error) {
		r, err := p.replica(id)
		if err != nil {
			return listener.Role{}, err
		}
		ctx, cancel := context.WithTimeout(ctx, roleTimeout)
		defer cancel()
		v, err := p.c.Peers.Viewer(ctx, r, user)
		return listener.Role{Found: v.Looks, CanLogin: v.Looks, MemberOf: v.MemberOf, Age: v.Age}, err
	}
	others := slices.DeleteFunc(p.askOrder(leader), func(id ag.ReplicaID) bool { return id == p.c.Self })
	role, err := firstCurrent(others, leader, cmp.Or(p.c.Node.AuthStaleness, time.Minute), ask)
	return p.watch.recall(user, role, err)
}

// recall remembers a role that may look, forgets one that may not, and answers with what it remembers where nobody
// could be asked.
func (w *watch) recall(user string, role listener.Role, err error) (listener.Role, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil && role.Found:
		*w.viewed.At(user) = viewed{role, boottime.Now()}
	case err == nil:
		w.viewed.Drop(user)
	case w.viewed.Has(user):
		if v := w.viewed.At(user); boottime.Now()-v.at < rememberedFor {
			return v.role, nil
		}
	}
	return role, err
}

// lookAt returns what a user may do at the console of a witness: look, or nothing.
func (p *Port) lookAt(ctx context.Context, user string) (Account, error) {
	role, err := p.viewer(ctx, user)
	a := Account{Principal: console.Principal{User: user, May: ddl.MayNothing}}
	if err == nil && role.Found {
		a.May = ddl.MayLook
	}
	return a, err
}

// logInToLook checks a login at the console of a witness. Only a certificate lets in, by a rule with the method cert:
// a witness has no verifiers, and its thief would collect passwords that are typed there.
func (p *Port) logInToLook(ctx context.Context, l listener.PasswordLogin) (Account, error) {
	rules := p.watch.rules.Load()
	if l.Certificate == nil || rules == nil {
		bad := pgwire.Fatal("certificate", pgwire.StateInvalidAuth, "this is a witness, which keeps no passwords: a client certificate lets in")
		bad.Hint = "Use the console of a replica, or a certificate of the authorities that client_ca in the witness's coterie.yaml names."
		return Account{}, bad
	}
	if !p.watch.budget.Spend(admission.Key(l.Client), 1, boottime.Now()) {
		return Account{}, pgwire.Fatal("certificate", pgwire.StateTooMany, "too many logins: try again in a moment")
	}
	role, err := p.viewer(ctx, l.User)
	if err != nil {
		bad := pgwire.Fatal("console", pgwire.StateCannotConnect, "the role %q could not be looked up", pgwire.Clip(l.User))
		bad.Hint = "No replica could be asked, and this witness has not heard of the role in the last 12 hours. coterie status on a node needs no role."
		return Account{}, errors.Join(bad, err)
	}
	l.Password = ""
	if why := l.Judge(role, listener.ConsoleDatabase, *rules, nil); why != "" {
		p.c.Logger.Info("login failed", "client", hostOf(l.Client), "user", l.User, "database", listener.ConsoleDatabase, "reason", why)
		return Account{}, pgwire.Fatal("certificate", pgwire.StateInvalidAuth, "certificate authentication failed for user %q", pgwire.Clip(l.User))
	}
	return Account{Principal: console.Principal{User: l.User, May: ddl.MayLook}}, nil
}

func hostOf(a *net.TCPAddr) string { return a.IP.String() }
