package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/postgres"
)

// sessions is the listener as the agent wants it, and the routes as the listener wants them.
type sessions struct {
	routes  atomic.Pointer[ag.Routes]
	mu      sync.Mutex // guards changed
	changed chan struct{}
	server  *listener.Server
	self    ag.ReplicaID
}

func newSessions(self ag.ReplicaID) *sessions {
	return &sessions{self: self, changed: make(chan struct{})}
}

func (s *sessions) Publish(r *ag.Routes) {
	s.routes.Store(r)
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

// newListener makes the client ports of this node.
func (n *node) newListener() (*listener.Server, error) {
	rules, err := n.rules()
	if err != nil {
		return nil, err
	}
	cert, err := tls.LoadX509KeyPair(endpoint.ListenerFiles(n.layout.PKI()))
	if err != nil {
		return nil, fmt.Errorf("listener certificate: %w", err)
	}
	c := listener.Config{
		ReadWrite: n.cfg.ReadWrite.Listen, ReadOnly: n.cfg.ReadOnly.Listen, Rules: rules, Logger: n.log.With("part", "listener"),
		Certificate: func() *tls.Certificate { return &cert }, Routes: n.sessions.routes.Load, Changed: n.sessions.Changed,
		Backend: n.backend, Verifier: n.verifier, Gate: n.agent.Gate, Node: n.nodeNumber(), ForwardCancel: n.forwardCancel,
		MockSecret: n.mockSecret(),
	}
	return listener.New(c)
}

// rules are the listener's: this node's own file if it names one, else the group's, else scram-sha-256 for everybody.
func (n *node) rules() ([]listener.Rule, error) {
	text, from := "", "the group's record"
	if g := n.group.Load(); g != nil {
		text = g.HBA
	}
	if n.cfg.HBA != "" {
		b, err := os.ReadFile(n.cfg.HBA)
		if err != nil {
			return nil, fmt.Errorf("listener rules: %w", err)
		}
		text, from = string(b), n.cfg.HBA
	}
	if text == "" {
		return listener.DefaultRules(n.cfg.TLSOnly), nil
	}
	rules, err := listener.ParseHBA(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("listener rules in %s: %w", from, err)
	}
	return rules, nil
}

// nodeNumber is this node's number in cancel keys: its place among the members, which differ. Should two ever share one after members
// came and went, a cancel request that arrives at the wrong one of them is dropped, as any with a wrong key.
func (n *node) nodeNumber() uint8 {
	for i, r := range n.group.Load().Replicas {
		if r.ID == n.self {
			return uint8(i % 16)
		}
	}
	return 15
}

// mockSecret gives every node of the group the same invented salts for unknown users.
func (n *node) mockSecret() []byte {
	h := fnv.New128a()
	_, _ = h.Write([]byte(n.cfg.Group + "\x00mock"))
	key, err := os.ReadFile(filepath.Join(n.layout.PKI(), "ca.crt"))
	if err == nil {
		_, _ = h.Write(key)
	}
	return slices.Concat(h.Sum(nil), h.Sum([]byte("2"))[:16])
}

// backend opens a connection to a replica's PostgreSQL: by the private socket here, through the endpoint elsewhere.
func (n *node) backend(ctx context.Context, id ag.ReplicaID, _ listener.BackendHello) (net.Conn, error) {
	if id == n.self {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.layout.Sockets(), ".s.PGSQL.5432"))
	}
	r, ok := n.replica(id)
	if !ok {
		return nil, fmt.Errorf("the group has no replica %s", id)
	}
	return n.endpoint.Dial(ctx, r.Endpoint, endpoint.ClassSQL, id)
}

// verifier asks the node that will run the session about the role.
func (n *node) verifier(ctx context.Context, id ag.ReplicaID, user string) (listener.Role, error) {
	var role postgres.Role
	var err error
	if id == n.self {
		role, err = n.pg.Verifier(ctx, user)
	} else {
		r, ok := n.replica(id)
		if !ok {
			return listener.Role{}, fmt.Errorf("the group has no replica %s", id)
		}
		err = n.control.Call(ctx, r.Endpoint, id, "role", user, &role)
	}
	var remote *endpoint.RemoteError
	if errors.Is(err, postgres.ErrNoRole) || errors.As(err, &remote) && remote.Message == postgres.ErrNoRole.Error() {
		return listener.Role{}, nil
	}
	if err != nil {
		return listener.Role{}, err
	}
	out := listener.Role{Found: true, Password: role.Password, CanLogin: role.CanLogin, Super: role.Super, Replication: role.Replication}
	if role.ValidUntil != nil {
		out.ValidUntil = *role.ValidUntil
	}
	return out, nil
}

// forwardCancel asks the other nodes, one after the other, which of them minted the key: there are at most nine.
func (n *node) forwardCancel(ctx context.Context, _ uint8, key listener.CancelKey) error {
	for _, r := range n.group.Load().Replicas {
		if r.ID == n.self || !r.HasData() {
			continue
		}
		if err := n.control.Call(ctx, r.Endpoint, r.ID, "cancel", key, nil); err == nil {
			return nil
		}
	}
	return errors.New("no node knows the key")
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
