package console

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// The limits of a console of which coterie.yaml says nothing.
const (
	defaultSessions  = 32
	defaultPerRole   = 8
	defaultIdle      = time.Hour
	defaultStatement = 10 * time.Second
	defaultOperation = 20 * time.Minute
)

// Limits bound the use of the console by its clients. A limit of 0 means its default.
type Limits struct {
	Sessions  int           // at once; default 32
	PerRole   int           // sessions of one role; default 8
	Idle      time.Duration // between two messages of a client; default 1 hour
	Statement time.Duration // of a query, a report or a setting; default 10 s
	Operation time.Duration // of a statement of an operator or administrator that acts; default 20 min
}

// Reserved is the number of sessions that only members of coterie_admin and superusers may have.
const Reserved = 4

func (l Limits) withDefaults() Limits {
	return Limits{
		Sessions: cmp.Or(l.Sessions, defaultSessions), PerRole: cmp.Or(l.PerRole, defaultPerRole), Idle: cmp.Or(l.Idle, defaultIdle),
		Statement: cmp.Or(l.Statement, defaultStatement), Operation: cmp.Or(l.Operation, defaultOperation),
	}
}

// Places are the sessions that a node's console may have at once. Make them with NewPlaces.
type Places struct {
	limits Limits

	mu   sync.Mutex     // guards the fields below
	open map[string]int // by role
	all  int

	full, roleFull, idle, late atomic.Uint64
}

// NewPlaces returns the places of a console.
func NewPlaces(l Limits) *Places { return &Places{limits: l.withDefaults(), open: map[string]int{}} }

// enter takes a place for a session. The caller calls leave at its end.
func (p *Places) enter(who Principal) (leave func(), err *Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	most := p.limits.Sessions
	if who.May < ddl.MayAdminister {
		most = max(1, most-Reserved)
	}
	switch {
	case p.open[who.User] >= p.limits.PerRole:
		p.roleFull.Add(1)
		return nil, Errorf("53300", "too many sessions of the console for role %q: %d of %d are open", who.User, p.open[who.User], p.limits.PerRole).
			WithHint("End one of them, or raise limits.console_sessions_per_role in coterie.yaml. \"coterie sql\" on a node needs no session.")
	case p.all >= most:
		p.full.Add(1)
		return nil, Errorf("53300", "too many sessions of the console: %d of %d are open, and %d of these are reserved for coterie_admin", p.all, p.limits.Sessions, Reserved).
			WithHint("End one of them, or raise limits.console_sessions in coterie.yaml. \"coterie sql\" on a node needs no session.")
	}
	p.open[who.User]++
	p.all++
	return func() { p.leave(who.User) }, nil
}

func (p *Places) leave(user string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all--
	if p.open[user]--; p.open[user] == 0 {
		delete(p.open, user)
	}
}

// Counts are the sessions of a console now, and how often each limit was reached, by its name.
type Counts struct {
	Sessions int
	Limits   map[string]uint64
}

// Counts returns the sessions now, and how often each limit was reached since the start.
func (p *Places) Counts() Counts {
	p.mu.Lock()
	all := p.all
	p.mu.Unlock()
	return Counts{Sessions: all, Limits: map[string]uint64{
		"sessions": p.full.Load(), "sessions_per_role": p.roleFull.Load(), "idle": p.idle.Load(), "statement": p.late.Load(),
	}}
}
