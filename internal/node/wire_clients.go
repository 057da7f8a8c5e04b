package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/node/walstream"
	"github.com/coteriedb/coterie/internal/postgres/login"
)

// sessions is the listener as the agent wants it, and the routes as the listener wants them.
type sessions struct {
	routes  atomic.Pointer[ag.Routes]
	mu      sync.Mutex // guards changed
	changed chan struct{}
	server  *listener.Server
	cert    atomic.Pointer[tls.Certificate] // of the client ports
	// clientCAs are the authorities of client certificates; nil: none.
	clientCAs atomic.Pointer[x509.CertPool]
	self      ag.ReplicaID
}

func newSessions(self ag.ReplicaID) *sessions {
	return &sessions{self: self, changed: make(chan struct{})}
}

func (s *sessions) Publish(r *ag.Routes) {
	s.routes.Store(r)
	s.touch()
}

// touch has everybody look again who waits for a change.
func (s *sessions) touch() {
	s.mu.Lock()
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
}

func (s *sessions) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *sessions) CloseOlder(e ag.Epoch, why string) {
	if s.server != nil {
		s.server.CloseEpoch(e, why)
	}
}

func (s *sessions) CloseLocal(why string) {
	if s.server != nil {
		s.server.CloseReplica(s.self, ag.ReadWrite, why)
	}
}

func (s *sessions) CloseReaders(why string) {
	if s.server != nil {
		s.server.CloseReplica(s.self, ag.ReadOnly, why)
	}
}

func (s *sessions) Hold(on bool) {
	if s.server != nil {
		s.server.HoldNew(on)
	}
}

func (s *sessions) Drain(on bool) {
	if s.server != nil {
		s.server.Drain(on)
	}
}

func (s *sessions) Busy() int {
	if s.server == nil {
		return 0
	}
	return s.server.Busy()
}

func (s *sessions) CutBusy(why string) {
	if s.server != nil {
		s.server.CutBusy(why)
	}
}

func (s *sessions) CloseServer(why string) {
	if s.server != nil {
		s.server.CloseServer(why)
	}
}

func (s *sessions) GateMoved() {
	if s.server != nil {
		s.server.GateMoved()
	}
}

// newListener makes the client ports of this node.
func (n *node) newListener() (*listener.Server, error) {
	rules, err := n.rules()
	if err != nil {
		return nil, err
	}
	if err := n.loadListenerCertificate(); err != nil {
		return nil, err
	}
	if err := n.loadClientCAs(); err != nil {
		return nil, err
	}
	readWrite, _ := n.cfg.ReadWrite.Places() // its sockets are opened, and tried again, beside the group's own port
	c := listener.Config{
		ReadWrite: strings.Join(readWrite, ","), ReadOnly: n.cfg.ReadOnly.Listen, Rules: rules, Logger: n.log.With("part", "listener"),
		Certificate: n.sessions.cert.Load, Routes: n.sessions.routes.Load, Changed: n.sessions.Changed,
		Backend: n.backend, Verifier: n.verifier, Gate: n.agent.Gate, Node: n.nodeNumber(), ForwardCancel: n.forwardCancel,
		ClientCAs: n.sessions.clientCAs.Load, NameClient: n.cfg.NameClients, AuthStaleness: n.cfg.AuthStaleness, NoKernelPath: n.cfg.NoKernelPath, Console: n.language.serveConsole, ConsoleRole: n.language.role,
		Limits: listenerLimits(n.cfg.Limits),
	}
	if secret, err := certs.NewSecret(n.layout.PKI(), "listener"); err == nil {
		c.MockSecret = secret.Get
	} else { // each node its own, then: salts of unknown users differ, and long cancel keys hold on their own node only
		n.log.Warn("the listeners' common secret cannot be read", "error", err)
	}
	if n.pg != nil {
		c.FlushLSN, c.Durable, c.Confirm, c.Strict = n.pg.CurrentFlush, n.durable, n.confirmLead, n.strict
		c.Position = n.standingOf
		c.Defaults = n.pg.Defaults
		c.Fingerprint, c.FingerprintSession, c.Reuse = n.mark, n.markSession, n.reuse
	}
	return listener.New(c)
}

// listenerLimits are those of coterie.yaml, and the listener's own defaults where it says nothing.
func listenerLimits(l config.Limits) listener.Limits {
	return listener.Limits{Connections: l.Connections, PerAddress: l.PerAddress, PreAuth: l.Logins, PreAuthTime: l.LoginTime}
}

func (n *node) loadListenerCertificate() error {
	cert, err := tls.LoadX509KeyPair(certs.ListenerFiles(n.layout.PKI()))
	if err != nil {
		return fmt.Errorf("listener certificate: %w", err)
	}
	n.sessions.cert.Store(&cert)
	return nil
}

// restartListener reads again what this node's client ports are made of, its certificate and its rules, and opens the group's own port
// again. Sessions go on.
func (n *node) restartListener() error {
	if n.sessions.server == nil {
		return nil // it has none
	}
	rules, err := n.rules()
	if err != nil {
		return err
	}
	if err := errors.Join(n.loadListenerCertificate(), n.loadClientCAs()); err != nil {
		return err
	}
	n.sessions.server.SetRules(rules)
	n.sessions.server.SetNamed(nil) // opened again by the next look
	n.sessions.touch()
	return nil
}

// standingOf asks a replica how far it is.
func (n *node) standingOf(ctx context.Context, id ag.ReplicaID) (listener.Progress, error) {
	if id == n.self {
		return n.standing(ctx)
	}
	r, ok := n.members.Replica(id)
	if !ok {
		return listener.Progress{}, fmt.Errorf("the group has no replica %s", id)
	}
	var x listener.Progress
	err := n.control.Call(ctx, r, "standing", nil, &x)
	return x, err
}

// standing is how far this node is: as the primary what it has flushed, as a secondary what it has replayed. While no stream from the
// primary is open the copy may have diverged, and then its position means something else there.
func (n *node) standing(ctx context.Context) (x listener.Progress, err error) {
	routes := n.sessions.routes.Load()
	switch {
	case n.pg == nil:
		return x, errors.New("this node runs no PostgreSQL")
	case routes != nil && routes.Primary == n.self:
		x.Epoch = routes.Epoch
	default:
		up := n.up.Status()
		if !up.Connected {
			return x, errors.New("no stream from the primary is open")
		}
		x.Epoch = up.Epoch
	}
	x.LSN, err = n.pg.CurrentFlush(ctx)
	return x, err
}

// durable returns when the members of the synchronous setting in force have flushed lsn. A secondary asks the primary.
func (n *node) durable(ctx context.Context, lsn ag.LSN) error {
	for {
		moved := n.down.Moved() // before the positions, or a move between the two would be slept over
		ok, err := n.acknowledged(lsn)
		if errors.Is(err, ag.ErrNotLeading) {
			ok, err = n.askDurable(ctx, lsn)
		}
		if ok {
			return nil
		}
		select {
		case <-moved:
		case <-time.After(durablePoll): // record and setting move without the streams
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("WAL up to %s: %w", lsn, context.Cause(ctx)), err)
		}
	}
}

// askedDurable is a secondary's question: a position of the history that it streams from the primary in that epoch.
type askedDurable struct {
	Epoch ag.Epoch `json:"epoch"`
	LSN   ag.LSN   `json:"lsn"`
}

// askDurable asks the primary for a secondary that replayed up to lsn. While no stream from it is open the copy may have diverged,
// and then the position means something else there.
func (n *node) askDurable(ctx context.Context, lsn ag.LSN) (bool, error) {
	up := n.up.Status()
	primary, ok := n.members.Replica(up.Replica)
	if !ok || !up.Connected || primary.ID == n.self {
		return false, ag.ErrNotLeading
	}
	var durable bool
	err := n.control.Call(ctx, primary, "durable", askedDurable{up.Epoch, lsn}, &durable)
	return durable, err
}

func (n *node) durableHere(_ context.Context, _ certs.Identity, body json.RawMessage) (any, error) {
	var asked askedDurable
	if err := json.Unmarshal(body, &asked); err != nil {
		return nil, err
	}
	if view := n.agent.View(); n.pg == nil || view == nil || view.Record.Epoch.Epoch != asked.Epoch {
		return nil, ag.ErrNotLeading
	}
	return n.acknowledged(asked.LSN)
}

// confirmLead returns nil if, by the quorum, this node leads the epoch whose sessions it serves.
func (n *node) confirmLead(ctx context.Context) error {
	routes := n.sessions.routes.Load()
	snap, err := n.ports.Read(ctx)
	if err != nil {
		return fmt.Errorf("ask the quorum who leads: %w", err)
	}
	e := snap.Record.Epoch
	if routes == nil || e.Epoch != routes.Epoch || e.Leader != n.self || e.Phase != ag.PhaseLead {
		return fmt.Errorf("epoch %d is led by %q: %w", e.Epoch, e.Leader, ag.ErrNotLeading)
	}
	return nil
}

func (n *node) acknowledged(lsn ag.LSN) (bool, error) {
	view := n.agent.View()
	if view == nil {
		return false, ag.ErrNotLeading
	}
	var streams []ag.Stream
	for _, s := range (&walstream.Downstream{Downstream: n.down}).Streams() {
		streams = append(streams, ag.Stream{Member: s.Member, Copy: s.Copy, Open: true, Flush: s.Flush})
	}
	return view.Acknowledged(lsn, streams)
}

// durablePoll is how often the setting in force is looked at again while an answer waits for it.
const durablePoll = 50 * time.Millisecond

// strict says whether the group wants every commit confirmed by the listener.
func (n *node) strict() bool {
	g := n.members.Group()
	return g != nil && g.Options.CommitBarrier == ag.BarrierStrict
}

// mark is what a new session on this node's server would begin with.
func (n *node) mark(ctx context.Context, user, database string) (listener.LoginFingerprint, error) {
	m, err := n.pg.Fingerprint(ctx, user, database)
	return listener.LoginFingerprint{Text: m.Text, Exclusive: m.Exclusive, NotReusable: m.NotReusable}, err
}

// markSession opens a session on which the listener's event loops ask for marks.
func (n *node) markSession(ctx context.Context) (net.Conn, error) {
	return n.pg.FingerprintSession(ctx, listener.FingerprintStatement)
}

// reuse says whether the group lets a backend serve one client after the other.
func (n *node) reuse() bool {
	g := n.members.Group()
	return g != nil && g.Options.BackendReuse
}

// rules are the listener's: this node's own file if it names one, else the group's, else scram-sha-256 for everybody.
func (n *node) rules() ([]hba.Rule, error) {
	if n.cfg.HBA != "" {
		rules, err := hba.ParseFile(n.cfg.HBA)
		if err != nil {
			return nil, fmt.Errorf("listener rules in %s: %w", n.cfg.HBA, err)
		}
		if n.cfg.ClientCA == "" && hba.AskForCertificates(rules) {
			return nil, fmt.Errorf("listener rules in %s: client certificates can only be checked if client_ca in coterie.yaml names the file of their authorities", n.cfg.HBA)
		}
		return rules, nil
	}
	text := ""
	if g := n.members.Group(); g != nil {
		text = g.HBA
	}
	if text == "" {
		return hba.DefaultRules(n.cfg.TLSOnly), nil
	}
	rules, err := hba.Parse(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("listener rules in the group's record: %w", err)
	}
	if n.cfg.ClientCA == "" && hba.AskForCertificates(rules) { // they came with another node, and the others of them are good
		n.log.Warn("rules of the group that ask for client certificates let nobody in here: client_ca in coterie.yaml names no authorities")
	}
	return rules, nil
}

// nodeNumber is this node's number in cancel keys: its place among the members as it was when the node started. Two may share one
// after members came and went: a key that a node does not know is asked about everywhere.
func (n *node) nodeNumber() uint8 {
	for i, r := range n.members.Group().Replicas {
		if r.ID == n.self {
			return uint8(i % 16)
		}
	}
	return 15
}

// loadClientCAs reads the authorities of client certificates, if there are any.
func (n *node) loadClientCAs() error {
	if n.cfg.ClientCA == "" {
		return nil
	}
	b, err := os.ReadFile(n.cfg.ClientCA)
	if err != nil {
		return fmt.Errorf("authorities of client certificates (client_ca): %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return fmt.Errorf("authorities of client certificates (client_ca): no certificate in PEM is in %s", n.cfg.ClientCA)
	}
	n.sessions.clientCAs.Store(pool)
	return nil
}

// backend opens a connection to a replica's PostgreSQL: by the private socket here, through the endpoint elsewhere.
func (n *node) backend(ctx context.Context, id ag.ReplicaID, _ listener.BackendHello) (net.Conn, error) {
	if id == n.self {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.layout.Sockets(), ".s.PGSQL.5432"))
	}
	r, ok := n.members.Replica(id)
	if !ok {
		return nil, fmt.Errorf("the group has no replica %s", id)
	}
	return n.endpoint.Dial(ctx, r.Endpoint, endpoint.ClassSQL, id)
}

// verifier asks the node that will run the session about the role.
func (n *node) verifier(ctx context.Context, id ag.ReplicaID, user string) (listener.Role, error) {
	var role agedRole
	var err error
	if id == n.self {
		role, err = n.agedRole(ctx, user)
	} else {
		r, ok := n.members.Replica(id)
		if !ok {
			return listener.Role{}, fmt.Errorf("the group has no replica %s", id)
		}
		err = n.control.Call(ctx, r, "role", user, &role)
	}
	if isNoRole(err) {
		return listener.Role{}, nil
	}
	if err != nil {
		return listener.Role{}, err
	}
	out := roleOf(role.Role)
	out.Age = role.Age
	return out, nil
}

// agedRole is what a node says of a role, and how old its copy may be in which it has looked.
type agedRole struct {
	login.Role
	Age time.Duration
}

func (n *node) agedRole(ctx context.Context, user string) (r agedRole, err error) {
	r.Age = listener.UnknownAge
	if n.sessions.server != nil {
		r.Age = n.sessions.server.Age()
	}
	r.Role, err = n.pg.Verifier(ctx, user)
	return r, err
}

// isNoRole says that a node has looked, and there is no such role.
func isNoRole(err error) bool {
	var remote *endpoint.RemoteError
	return errors.Is(err, login.ErrNoRole) || errors.As(err, &remote) && remote.Message == login.ErrNoRole.Error()
}

func roleOf(role login.Role) listener.Role {
	out := listener.Role{Found: true, Password: role.Password, CanLogin: role.CanLogin, Super: role.Super, Replication: role.Replication, MemberOf: role.MemberOf}
	if role.ValidUntil != nil { // long ago for '-infinity', which is the zero time here and no limit there
		out.ValidUntil = time.Unix(max(role.ValidUntil.Unix(), 1), 0)
	}
	return out
}

// forwardCancel asks the other nodes, all at once, which of them minted the key: there are at most eight, and one that is dead keeps none
// of the others from being asked.
func (n *node) forwardCancel(ctx context.Context, _ uint8, key listener.CancelKey) error {
	ctx, found := context.WithCancel(ctx)
	defer found()
	var asked sync.WaitGroup
	var known atomic.Bool
	for _, r := range n.members.Group().Replicas {
		if r.ID == n.self || !r.HasData() {
			continue
		}
		asked.Go(func() {
			if n.control.Call(ctx, r, "cancel", key, nil) == nil {
				known.Store(true)
				found()
			}
		})
	}
	asked.Wait()
	if !known.Load() {
		return errors.New("no node that answered knows the key")
	}
	return nil
}

func (n *node) cancelHere(ctx context.Context, body json.RawMessage) (any, error) {
	var key listener.CancelKey
	if err := json.Unmarshal(body, &key); err != nil {
		return nil, err
	}
	if n.sessions.server == nil || !n.sessions.server.Cancel(ctx, key) {
		return nil, errors.New("no session has that key")
	}
	return nil, nil
}
