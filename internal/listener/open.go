package listener

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/clientcert"
	"github.com/coteriedb/coterie/internal/listener/counters"
	"github.com/coteriedb/coterie/internal/listener/gate"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/hello"
	"github.com/coteriedb/coterie/internal/listener/opening"
	"github.com/coteriedb/coterie/internal/listener/pool"
	"github.com/coteriedb/coterie/internal/listener/routing"
)

// open authenticates the client, opens its session on a replica and relays until its end. Tries that fail for a
// temporary reason are repeated: the client sees latency.
func (c *client) open(ctx context.Context, rule hba.Rule) error {
	p := c.newLoginBudget()
	l := proven{rule: rule, replication: c.start.Replication != pgwire.ReplicationNone}
	if c.start.Replication == pgwire.ReplicationLogical && c.intent == ag.ReadOnly {
		return pgwire.Fatal("replication", pgwire.StateNotSupported, "logical replication runs on the primary: connect with READ_WRITE intent")
	}
	for {
		r, err := c.route(ctx, p)
		if err != nil {
			return err
		}
		again, err := c.openOn(ctx, r, &l)
		if !again {
			return err
		}
		if err := c.retry(ctx, p, r, err); err != nil {
			return err
		}
	}
}

// proven is what a client has proved in its login, over all its tries.
type proven struct {
	rule          hba.Rule
	replication   bool         // it requests replication, which needs a role with that right
	judge         ag.ReplicaID // the replica whose role facts were used
	asked         time.Time    // when it was asked
	role          Role
	authenticated bool
}

// roleAge is how old role facts may be when a session is handed out: a login may have waited long since its proof.
const roleAge = time.Second

// openOn is one try, on the replica of the route. It returns when the session is handed over, or with an error. again
// reports whether the error may be temporary.
func (c *client) openOn(ctx context.Context, r routing.Route, l *proven) (again bool, err error) {
	needed := l.rule.NeedsRole() || l.replication
	if needed && (r.ID != l.judge || l.authenticated && time.Since(l.asked) > roleAge) {
		asked := time.Now()
		fresh, err := c.judge(ctx, r)
		if err != nil {
			_, final := pgwire.AsError(err)
			return !final, err
		}
		if l.authenticated && !sameLogin(l.role, fresh) {
			return false, pgwire.Fatal("role changed", pgwire.StateCannotConnect, "the role changed while the session was being opened")
		}
		l.role, l.judge, l.asked = fresh, r.ID, asked
	}
	if !l.authenticated {
		if err := c.admit(ctx, l.rule, l.role); err != nil {
			return false, err
		}
		l.authenticated = true
		if needed && time.Since(l.asked) > roleAge { // the client took its time
			return c.openOn(ctx, r, l)
		}
	}
	if l.replication && !l.role.Replication && !l.role.Super {
		return false, pgwire.Fatal("replication", "42501", "must be superuser or replication role to start walsender")
	}
	x, err := c.connect(ctx, r)
	if err != nil {
		_, final := pgwire.AsError(err)
		return !final && !errors.Is(err, errClient), err
	}
	c.unhook() // from here on the session ends by its own means
	c.srv.wg.Add(1)
	finished := func() { c.release(); c.srv.wg.Done() }
	c.carried = true
	c.carry(x, finished)
	return false, nil
}

// admit authenticates the client and has AuthenticationOk sent.
func (c *client) admit(ctx context.Context, rule hba.Rule, role Role) error {
	if rule.Method == hba.MethodSCRAM || rule.Method == hba.MethodMD5 {
		if err := c.awaitTurn(ctx); err != nil {
			return err
		}
	}
	c.arm(ctx)
	if err := c.authenticate(rule, role); err != nil {
		return err
	}
	if bad := c.count(); bad != nil {
		return bad
	}
	c.srv.unproven.Succeeded(c.from.Key, c.spent)
	c.spent = 0
	c.withNext = pgwire.AppendAuth(c.withNext, auth.OK, nil)
	c.leavePreAuth()
	_ = c.raw.SetDeadline(time.Time{})
	return nil
}

// memberships returns the roles of which the user is a member, as the judging replica knows them. The client is not
// authenticated, so no error to it mentions them.
func (c *client) memberships(ctx context.Context) ([]string, error) {
	p := c.newLoginBudget()
	for {
		r, err := c.route(ctx, p)
		if err != nil {
			return nil, err
		}
		role, err := c.judge(ctx, r)
		if err == nil {
			return role.MemberOf, nil
		}
		if _, final := pgwire.AsError(err); final {
			return nil, err
		}
		if err := c.retry(ctx, p, r, err); err != nil {
			return nil, err
		}
	}
}

// judge returns the role facts that decide a login. They are the primary's, since a secondary may not have replayed
// an ALTER ROLE yet. For a reader they are the secondary's own if the primary does not answer soon.
func (c *client) judge(ctx context.Context, r routing.Route) (Role, error) {
	routes := c.srv.cfg.Routes()
	if routes == nil || c.intent == ag.ReadWrite || r.ID == routes.Primary {
		return c.roleFacts(ctx, r)
	}
	primary, ok := routes.Target(routes.Primary)
	if !ok || !routes.WriteOpen || c.srv.primarySilent() {
		return c.ownJudgement(ctx, r)
	}
	soon, cancel := context.WithTimeout(ctx, primaryBudget)
	role, err := c.roleFacts(soon, routing.Route{Target: primary, Epoch: routes.Epoch, Changed: r.Changed})
	cancel()
	if err == nil || ctx.Err() != nil {
		return role, err
	}
	c.srv.silentSince.Store(int64(boottime.Now()))
	c.log.Info("a reader is judged by its replica: the primary does not answer", "replica", r.ID, "error", err)
	return c.ownJudgement(ctx, r)
}

// A reader's login waits for the primary for primaryBudget. After it did not answer, other logins do not wait for
// primaryAgain.
const (
	primaryBudget = time.Second
	primaryAgain  = 5 * time.Second
)

// primarySilent reports whether the primary recently did not answer.
func (s *Server) primarySilent() bool {
	at := s.silentSince.Load()
	return at != 0 && boottime.Now()-time.Duration(at) < primaryAgain
}

// roleFacts asks the route's replica about the role. The end of that replica's leadership ends the question, so a
// silent replica is waited for no longer than the group does.
func (c *client) roleFacts(ctx context.Context, r routing.Route) (Role, error) {
	if err := c.spend(ctx); err != nil {
		return Role{}, err
	}
	ctx, done := c.asking(ctx)
	defer done()
	ctx, cancel := context.WithCancelCause(ctx)
	a := &attempt{Route: r, intent: c.intent, cancel: cancel}
	defer c.srv.abandon(a)
	if !c.srv.begin(a) {
		return Role{}, errMoved
	}
	ctx, stopTimer := context.WithTimeout(ctx, c.srv.cfg.Limits.BackendHandshake)
	defer stopTimer()
	began := time.Now()
	defer func() { c.until = c.until.Add(time.Since(began)) }() // not the client's own time
	role, err := c.srv.cfg.Verifier(ctx, r.ID, c.start.User)
	if bad, evicted := pgwire.AsError(context.Cause(ctx)); err != nil && evicted {
		return role, bad
	}
	if err != nil {
		return role, fmt.Errorf("ask replica %s about the role: %w", r.ID, err)
	}
	return role, nil
}

// ownJudgement returns the role facts of the copy that a reader will read, if they are recent enough to decide.
func (c *client) ownJudgement(ctx context.Context, r routing.Route) (Role, error) {
	role, err := c.roleFacts(ctx, r)
	if err != nil || c.intent == ag.ReadWrite || role.Age <= c.srv.cfg.AuthStaleness {
		return role, err
	}
	c.log.Warn("a reader is refused: the primary does not answer, and the replica's copy may be too old to say who may log in",
		"replica", r.ID, "auth_staleness", c.srv.cfg.AuthStaleness)
	bad := pgwire.Fatal("stale roles", pgwire.StateCannotConnect, "the primary does not answer, and the data of replica %s may be too old to say who may log in", r.ID)
	bad.Hint = "Try again when the group has a primary. How old it may be is auth_staleness in coterie.yaml, " + c.srv.cfg.AuthStaleness.String() + " here."
	return role, bad
}

// sameLogin reports whether a proof against one node's role facts holds for another's.
func sameLogin(was, is Role) bool {
	return is.Found && is.CanLogin && is.Password == was.Password && auth.CheckValidUntil(is) == nil
}

// errClient is a failure of the client's side while its session was being opened.
var errClient = errors.New("client lost")

// connect opens the session on the replica of the route and sends the greeting. An error that is neither a pgwire.Error
// nor errClient may be temporary, and was not sent to the client.
func (c *client) connect(ctx context.Context, r routing.Route) (*session, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	a := &attempt{Route: r, intent: c.intent, cancel: cancel}
	defer c.srv.abandon(a)
	if !c.srv.begin(a) {
		return nil, errMoved
	}
	ctx, stopTimer := context.WithTimeout(ctx, c.srv.cfg.Limits.BackendHandshake)
	defer stopTimer()
	lease := c.reusableBackend(ctx, r)
	x, greeting, err := c.join(ctx, r, lease)
	if err != nil {
		return nil, err
	}
	if !c.srv.activate(a, x) {
		_ = x.backend.Close()
		return nil, errMoved
	}
	if lease != nil && x.backendFrom != counters.BackendReused { // reused backends return to the pool
		defer c.srv.pool.NoteLogin(lease)
	}
	if err := c.send(x.mint(greeting)); err != nil {
		x.close()
		return nil, errClient
	}
	c.logOpened(x, r)
	return x, nil
}

// logOpened logs the session.
func (c *client) logOpened(x *session, r routing.Route) {
	c.log.Info("session opened", "session", x.id, "user", x.user, "database", x.database, "client", x.addr,
		"tls", x.tls, "tls_name", x.asked, "tls_identity", x.identity, "intent", x.intent, "replica", x.replica, "epoch", x.epoch, "pid", x.pid, "fell_back", r.FellBack)
}

// join joins the client to a backend: a pooled one that fits, or a new one.
func (c *client) join(ctx context.Context, r routing.Route, lease *pool.Backend) (*session, opening.Greeting, error) {
	own := BackendHello{User: c.start.User, Database: c.start.Database, ClientAddr: c.address(), Intent: c.intent, Epoch: r.Epoch}
	var warm *pool.Backend
	if lease != nil {
		own = lease.Hello
		warm = c.srv.pool.Take(lease)
	}
	var conn net.Conn
	if warm != nil {
		conn = warm.Conn
	} else {
		if r.Local {
			done, err := c.srv.startOne(ctx)
			if err != nil {
				return nil, opening.Greeting{}, err
			}
			defer done()
		}
		var err error
		if conn, err = c.srv.cfg.Backend(ctx, r.ID, own); err != nil {
			return nil, opening.Greeting{}, fmt.Errorf("reach replica %s: %w", r.ID, err)
		}
	}
	x := c.newSession(r, conn)
	x.setInput(r.Local, ctx.Done())
	unhook := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	g, err := c.greet(x, warm, own.ClientAddr)
	if err == nil && x.replicates {
		if bad := x.checkGreeting(g); bad != nil {
			err = bad
		}
	}
	if err != nil || !unhook() {
		_ = conn.Close()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if r.Local {
			err = c.srv.makeRoom(err)
		}
		return nil, g, err
	}
	if warm != nil {
		x.adoptBackend(warm, g)
		return x, g, nil
	}
	x.pid, x.realKey = g.PID(), g.Key
	x.offerBackend(lease, g)
	return x, g, nil
}

// adoptBackend gives the session a pooled backend.
func (x *session) adoptBackend(b *pool.Backend, g opening.Greeting) {
	x.pid, x.realKey, x.backendFrom = g.PID(), g.Key, counters.BackendAhead
	if b.Used {
		x.backendFrom = counters.BackendReused
	}
	x.offerBackend(b, g)
}

// greet returns the greeting of the session's backend. That of a pooled backend passes the gate now.
func (c *client) greet(x *session, warm *pool.Backend, addr string) (g opening.Greeting, err error) {
	if warm == nil {
		return opening.Start(x.backend, x.in, c.packet(addr, x.replica), x.replica)
	}
	if x.gate != nil {
		err = x.gate.Pass()
	}
	return warm.Greeting.Copy(), err
}

// packet returns the startup packet of the client's session on that replica; addr is the client's address for the
// server.
func (c *client) packet(addr string, id ag.ReplicaID) []byte {
	tls := ""
	if c.tlsState != nil {
		tls = tlsName(c.tlsState.Version)
	}
	start := c.start
	if c.srv.cfg.NameClient && start.Replication == pgwire.ReplicationNone { // standbys are known by that name
		start = start.WithClientName(addr)
	}
	back := c.takesBack(id)
	h := hello.Hello{ClientAddr: addr, TLS: tls, Intent: c.intent, Reads: c.start.Reads, Moves: back, Outlives: back}
	return start.Packet(h.Parameters(id)...)
}

// address returns the client's address as coterie.client_addr and the log show it.
func (c *client) address() string {
	if c.login.Local {
		return "local"
	}
	return c.raw.RemoteAddr().String()
}

func (c *client) newSession(r routing.Route, backend net.Conn) *session {
	x := &session{
		srv: c.srv, user: c.start.User, database: c.start.Database, addr: c.address(), intent: c.intent,
		replica: r.ID, epoch: r.Epoch, since: time.Now(), client: c.conn, raw: c.raw, backend: backend,
		replicates: c.start.Replication == pgwire.ReplicationLogical, onPrimary: c.intent == ag.ReadWrite || r.FellBack, fellBack: r.FellBack, entry: r.Entry, cut: make(chan struct{}), moving: newMoving(c),
	}
	if c.tlsState != nil {
		x.tls, x.asked = tlsName(c.tlsState.Version), c.tlsState.ServerName
		if len(c.tlsState.VerifiedChains) > 0 {
			x.identity, _ = clientcert.Name(c.tlsState.PeerCertificates[0])
		}
	}
	x.longKey = c.start.Minor >= 2
	x.confirmation.Rules, x.confirmation.Reads = c.srv.answerRules(), c.start.Reads
	x.moving.mayLog = c.mayOutlive()
	x.requests.Texts = x.preparedText
	x.moving.known.unchanged.Brief = r.Local
	x.moving.known.follows, x.moving.application = c.mayOutlive(), c.start.Setting(applicationName)
	return x
}

// answerRules returns by which rules answers are confirmed here.
func (s *Server) answerRules() gate.Rules { return gate.Rules{Log: s.cfg.Log, Strict: s.cfg.Strict} }

// carry has a loop or goroutines carry the session until it ends, or is continued by another one. finished is called
// once, when the last has ended.
func (c *client) carry(x *session, finished func()) {
	if x.toLoop(finished) {
		return
	}
	go func() { // on a new stack: this one has grown with the handshake
		moved := false
		func() {
			defer x.rescue("end") // of the two directions each has its own
			moved = x.relay()
		}()
		if moved {
			c.carryOn(x, finished)
			return
		}
		finished()
	}()
}

// carryOn continues a session that has left its backend.
func (c *client) carryOn(x *session, finished func()) {
	var y *session
	func() {
		defer func() {
			if r := recover(); r != nil {
				c.log.Error("session panicked", "session", x.id, "direction", "move", "panic", r, "stack", string(debug.Stack()))
				c.lose(x, errors.New("internal error of the listener"))
			}
			c.noServer(false)
		}()
		y = c.again(x)
	}()
	if y == nil {
		finished()
		return
	}
	c.carry(y, finished)
}
