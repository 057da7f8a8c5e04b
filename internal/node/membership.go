package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/etcd/embedded"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/node/fencetime"
	"github.com/coteriedb/coterie/internal/node/membership"
)

// openStore opens the client of the quorum and, on a voter of an embedded one, its member.
func (n *node) openStore(ctx context.Context) error {
	c := etcd.StoreConfig{
		Group: ag.GroupID(n.cfg.Group), Dial: n.dialQuorum, Replica: n.self, Attempt: n.incarnation,
		Endpoints: []string{string(n.self)}, Logger: n.log.With("part", "quorum"),
	}
	if err := sameQuorum(n.cfg, *n.members.Group()); err != nil {
		return err
	}
	if n.external() {
		x := ExternalQuorum(n.cfg)
		c.Dial, c.Endpoints = x.Dial, x.Endpoints
	}
	n.ports = &groupStore{self: n.self, member: n.member.Load, voters: n.members.Voters, external: n.external()}
	store, err := etcd.OpenStore(c)
	if err != nil {
		return fmt.Errorf("quorum: %w", err)
	}
	n.store, n.ports.store = store, store
	founder := n.layout.FoundingFile()
	if _, err := os.Stat(founder); err == nil {
		if err := n.found(ctx, founder); err != nil {
			return err
		}
	} else if n.wasMember() {
		if err := n.castVote(ctx); err != nil {
			return err
		}
	}
	n.ports.refresh()
	return nil
}

func (n *node) closeStore() {
	_ = n.store.Close()
	if m := n.member.Load(); m != nil {
		if err := m.Close(); err != nil {
			n.log.Warn("quorum member", "err", err)
		}
	}
}

// found starts the first member and writes the first record; it may run again after a crash.
func (n *node) found(ctx context.Context, path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var f membership.Founding
	if err := json.Unmarshal(b, &f); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if n.external() {
		return n.foundExternal(ctx, f)
	}
	if err := n.startMember(ctx, cmp.Or(f.Token, n.cfg.Group), true, nil); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := n.member.Load().Ready(ctx); err != nil {
		return fmt.Errorf("quorum: %w", err)
	}
	for i := range f.Group.Replicas {
		if f.Group.Replicas[i].ID == n.self {
			f.Group.Replicas[i].EtcdID = n.member.Load().ID()
		}
	}
	n.ports.refresh()
	err = n.store.Bootstrap(ctx, f.Group, f.Epoch, f.State)
	if _, readErr := n.store.Read(ctx); readErr != nil {
		return errors.Join(err, readErr)
	}
	return durable.Remove(path)
}

func (n *node) startMember(ctx context.Context, token string, founding bool, initial map[string]string) error {
	cert, key, ca := certs.TLSFiles(n.layout.PKI())
	advertise := n.cfg.Endpoint.Advertise
	believes := n.believes()
	m, err := embedded.Start(ctx, embedded.Config{
		Name: string(n.self), Dir: n.layout.Etcd(),
		ClientSocket: n.layout.EtcdClient(), AdvertisePeer: "https://" + advertise, Initial: initial, New: founding, Token: token,
		CertFile: cert, KeyFile: key, CAFile: ca, ServerName: "localhost", IdentityFile: n.layout.MemberMark(), HeartbeatMS: 200, ElectionMS: 1000, Logger: n.log.With("part", "quorum"),
	})
	if err != nil {
		return fmt.Errorf("quorum member: %w", err)
	}
	n.voteCAs.Store(&believes)
	n.member.Store(m)
	return nil
}

// dialQuorum reaches a voter: this node's own member directly, others through the endpoint.
func (n *node) dialQuorum(ctx context.Context, name string) (net.Conn, error) {
	if name == string(n.self) {
		m := n.member.Load()
		if m == nil {
			return nil, errors.New("this node's quorum member does not run")
		}
		return m.DialClient(ctx)
	}
	r, ok := n.members.Replica(ag.ReplicaID(name))
	if !ok {
		return nil, fmt.Errorf("the group has no member %s", name)
	}
	return n.endpoint.Dial(ctx, r.Endpoint, endpoint.ClassQuorum, r.ID)
}

// serveQuorum serves another node's client of the quorum store, serveEtcdPeer another node's member of it. A node whose own member
// does not run hangs up, and is asked again.
func (n *node) serveQuorum(ctx context.Context, _ certs.Identity, conn net.Conn) {
	if m := n.member.Load(); m != nil {
		m.ServeClient(ctx, conn)
	}
}

func (n *node) serveEtcdPeer(ctx context.Context, _ certs.Identity, conn net.Conn) {
	if m := n.member.Load(); m != nil {
		m.ServePeer(ctx, conn)
	}
}

// keepMembership makes this node's part in the quorum what the group's configuration says: it joins as a learner and becomes a voter,
// or leaves.
func (n *node) keepMembership(ctx context.Context) error {
	said := ""
	for {
		if err := n.membershipTurn(ctx); err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			n.log.Warn("quorum membership not settled yet", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (n *node) membershipTurn(ctx context.Context) error {
	snap := n.agent.Snapshot()
	if snap == nil {
		return nil
	}
	me, ok := snap.Group.Replica(n.self)
	m := n.member.Load()
	if ok && n.comesBack() {
		if err := n.updateGroup(ctx, func(g *ag.Group) error { g.AssignVotes(); return nil }); err != nil {
			return err
		}
		return durable.Remove(n.layout.ComebackFile())
	}
	if n.external() {
		return n.countExternal(ctx, snap)
	}
	if kept, err := n.keepVote(ctx, ok && me.EtcdID != 0); kept {
		return err
	}
	switch {
	case ok && me.Voter && (m == nil || me.EtcdID == 0):
		if before := waitsFor(snap.Group, n.self); before != "" {
			return fmt.Errorf("%s is to vote first; start it, or take it out with coterie remove %s", before, before)
		}
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		err := n.becomeVoter(ctx)
		if errors.Is(err, embedded.ErrFailed) {
			n.failVote(err)
		}
		return err
	case (!ok || !me.Voter) && m != nil && len(snap.Group.Replicas) > 0:
		return n.stopVoting(m)
	}
	return nil
}

func (n *node) comesBack() bool {
	_, err := os.Stat(n.layout.ComebackFile())
	return err == nil
}

// waitsFor returns the member that is to become a voter before this one: one at a time, in the order of the configuration. The quorum
// takes one learner at a time, and a second that it rejects stays behind in its members' connections for ever.
func waitsFor(g ag.Group, self ag.ReplicaID) ag.ReplicaID {
	for _, r := range g.Replicas {
		if r.ID == self {
			return ""
		}
		if r.Voter && r.EtcdID == 0 {
			return r.ID
		}
	}
	return ""
}

// becomeVoter adds this node to the quorum as a learner, starts its member, and has it promoted once it has caught up. Every step
// can be repeated.
func (n *node) becomeVoter(ctx context.Context) error {
	url := "https://" + n.cfg.Endpoint.Advertise
	id, initial, err := n.store.AddLearner(ctx, url)
	if err != nil {
		return err
	}
	if n.member.Load() == nil {
		if err := n.startMember(ctx, n.cfg.Group, false, initial); err != nil {
			return err
		}
	}
	if err := n.store.PromoteLearner(ctx, id); err != nil {
		return err
	}
	n.log.Info("this node votes in the quorum now", "member", fmt.Sprintf("%x", id))
	return n.updateGroup(ctx, func(g *ag.Group) error {
		for i := range g.Replicas {
			if g.Replicas[i].ID == n.self {
				g.Replicas[i].EtcdID = id
			}
		}
		return nil
	})
}

// stopVoting closes a member that the group has removed, and forgets its log, which may never be used again.
func (n *node) stopVoting(m *embedded.Member) error {
	n.member.Store(nil)
	n.ports.refresh()
	err := m.Close()
	n.log.Info("this node does not vote in the quorum any more")
	return errors.Join(err, os.RemoveAll(n.layout.Etcd()), durable.Remove(n.layout.MemberMark()))
}

// updateGroup changes the configuration by compare-and-swap, reading again when somebody else was quicker.
func (n *node) updateGroup(ctx context.Context, change func(*ag.Group) error) error {
	for {
		x, err := n.store.Read(ctx)
		if err != nil {
			return err
		}
		if err := change(&x.Group); err != nil {
			return err
		}
		_, err = n.store.UpdateGroup(ctx, x.GroupRev, x.Group)
		if !errors.Is(err, etcd.ErrConflict) {
			return err
		}
	}
}

// admit is the group's side of coterie join: the token is checked and consumed, the member written into the configuration, its
// certificate issued. Repeating it with the same key after a lost answer gives the same answer.
func (n *node) admit(ctx context.Context, tokenID string, verify func([]byte) bool, req endpoint.JoinRequest) (endpoint.JoinGrant, error) {
	var none endpoint.JoinGrant
	stored, err := n.store.Token(ctx, tokenID)
	known := err == nil || errors.Is(err, etcd.ErrTokenUsed) || errors.Is(err, etcd.ErrTokenExpired)
	if !known && !errors.Is(err, etcd.ErrTokenUnknown) {
		return none, &endpoint.RemoteError{Code: "unavailable", Message: "the quorum does not answer; try again"}
	}
	var t endpoint.StoredToken
	if known {
		if err := json.Unmarshal(stored.Value, &t); err != nil {
			return none, err
		}
	}
	pin, err := req.KeyPin()
	if err != nil {
		return none, err
	}
	if err := t.Check(verify, req.Kind, pin, time.Now()); err != nil {
		return none, err
	}
	ca := n.ca.Load()
	grant, err := endpoint.Admit(ca, req)
	if err != nil {
		return none, err
	}
	x, err := n.store.Read(ctx)
	if err != nil {
		return none, err
	}
	old, there := x.Group.Replica(req.ID)
	again := there && old.KeyPin == pin // its first answer got lost
	if stored.Used && !again {
		return none, &endpoint.RemoteError{Code: "token_used", Message: "this join token was used already; make another with coterie token create"}
	}
	if err := enlist(&x.Group, req, pin); err != nil { // refused before the token is spent
		return none, err
	}
	if err := fencetime.Holds(x.Group.Profile, req.Fence); err != nil {
		return none, &endpoint.RemoteError{Code: endpoint.CodeRefused, Message: err.Error()}
	}
	if !stored.Used {
		if _, err := n.store.ConsumeToken(ctx, tokenID); err != nil {
			return none, &endpoint.RemoteError{Code: "token_used", Message: err.Error()}
		}
	}
	err = n.updateGroup(ctx, func(g *ag.Group) error {
		if n.ca.Load() != ca { // the joiner would not know what the others have come to believe meanwhile
			return &endpoint.RemoteError{Code: endpoint.CodeUnavailable, Message: "the certificate authority is being rotated; try again"}
		}
		return enlist(g, req, pin)
	})
	if err != nil {
		return none, err
	}
	if x, err = n.store.Read(ctx); err != nil {
		return none, err
	}
	grant.Group = x.Group
	n.groupChanged(x.Group)
	n.log.Info("member admitted", "member", req.ID, "kind", req.Kind, "endpoint", req.Endpoint)
	return grant, nil
}

// enlist adds the joiner to the configuration. A refusal is an *endpoint.RemoteError.
func enlist(g *ag.Group, req endpoint.JoinRequest, pin string) error {
	if err := config.CheckName(string(req.ID)); err != nil {
		return &endpoint.RemoteError{Code: endpoint.CodeRefused, Message: err.Error()}
	}
	r := ag.Replica{
		ID: req.ID, Endpoint: req.Endpoint, Listener: req.Listener, ReadOnly: req.ReadOnly, HTTP: req.HTTP, KeyPin: pin, Major: req.Major,
	}
	if req.Kind == certs.KindWitness {
		r.AvailabilityMode = ag.ConfigurationOnly
	}
	var refused *ag.EnlistError
	if err := g.Enlist(r); errors.As(err, &refused) {
		return &endpoint.RemoteError{Code: string(refused.Reason), Message: refused.Message}
	} else if err != nil {
		return err
	}
	return nil
}
