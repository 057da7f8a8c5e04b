package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// CreateToken makes a join token that any replica of the group honours once.
func (m *admin) CreateToken(ctx context.Context, req api.TokenRequest) (api.TokenResult, error) {
	n := m.n
	ca := n.pki.CA()
	if ca == nil {
		return api.TokenResult{}, api.Refused("a witness cannot admit members; run this on a replica")
	}
	var addresses []string
	for _, r := range n.members.Group().Replicas {
		if r.HasData() {
			addresses = append(addresses, r.Endpoint)
		}
	}
	var quorum endpoint.TokenQuorum
	if q := n.cfg.Quorum; q != nil {
		quorum = endpoint.TokenQuorum{Endpoints: q.Endpoints, CA: q.CA, Cert: q.Cert, Key: q.Key}
	}
	text, stored, err := endpoint.NewToken(ca, endpoint.TokenOptions{Role: req.Role, Addresses: addresses, Quorum: quorum}, req.TTL)
	if err != nil {
		return api.TokenResult{}, fail.Error{Kind: fail.Usage, Err: err}
	}
	value, err := json.Marshal(stored)
	if err != nil {
		return api.TokenResult{}, err
	}
	if err := n.store.PutToken(ctx, etcd.Token{ID: stored.ID, Value: value, Expires: stored.Expires}); err != nil {
		return api.TokenResult{}, fmt.Errorf("store the token: %w", err)
	}
	verb := "join"
	if req.Role == "witness" {
		verb = "witness"
	}
	return api.TokenResult{Token: text, Role: req.Role, Expires: stored.Expires, Command: "coterie " + verb + " " + text}, nil
}

// Remove takes a member out in an order that is safe at every step: it is dropped from V, its vote is taken, then its place in the
// configuration, which revokes its certificate and lets its slot be dropped.
func (m *admin) Remove(ctx context.Context, id ag.ReplicaID) error {
	n := m.n
	x, err := n.store.Read(ctx)
	if err != nil {
		return err
	}
	r, ok := x.Group.Replica(id)
	if !ok {
		return api.Refused(fmt.Sprintf("the group has no member %s", id))
	}
	if x.Record.Epoch.Leader == id {
		return api.Refused(fmt.Sprintf("%s is the primary; coterie failover first", id))
	}
	if err := n.updateGroup(ctx, func(g *ag.Group) error { return setSuspended(g, id, true) }); err != nil {
		return err
	}
	if err := m.awaitDropped(ctx, id); err != nil {
		return err
	}
	if r.EtcdID != 0 {
		if err := n.store.RemoveMember(ctx, r.EtcdID); err != nil {
			return fmt.Errorf("take the vote of %s: %w", id, err)
		}
	}
	var unvote []ag.Replica
	err = n.updateGroup(ctx, func(g *ag.Group) error {
		unvote = nil
		g.Replicas = slices.DeleteFunc(g.Replicas, func(r ag.Replica) bool { return r.ID == id })
		g.AssignVotes()
		for i := range g.Replicas {
			if !g.Replicas[i].Voter && g.Replicas[i].EtcdID != 0 {
				unvote = append(unvote, g.Replicas[i])
				g.Replicas[i].EtcdID = 0
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, r := range unvote {
		if err := n.store.RemoveMember(ctx, r.EtcdID); err != nil {
			return fmt.Errorf("an even number of votes is no use, but %s keeps its own: %w", r.ID, err)
		}
	}
	return n.store.DeleteStatus(ctx, id)
}

func (m *admin) awaitDropped(ctx context.Context, id ag.ReplicaID) error {
	for {
		x, err := m.n.store.Read(ctx)
		if err != nil {
			return err
		}
		if _, in := x.Record.State.InV(id); !in {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the primary has not dropped %s from the synchronized set: %w", id, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func setSuspended(g *ag.Group, id ag.ReplicaID, on bool) error {
	for i := range g.Replicas {
		if g.Replicas[i].ID == id {
			if !on && g.Replicas[i].Join != "" {
				return api.Refused(fmt.Sprintf("%s is no replica of the group; on it run: coterie sql -c 'ALTER AVAILABILITY GROUP %s JOIN'", id, ddl.Brackets(g.Name)))
			}
			g.Replicas[i].Suspended, g.Replicas[i].SuspendedBy = on, ""
			if on {
				g.Replicas[i].SuspendedBy = ag.SuspendUser
			}
			return nil
		}
	}
	return api.Refused(fmt.Sprintf("the group has no member %s", id))
}

// Set changes settings; what cannot be is refused before anything is written.
func (m *admin) Set(ctx context.Context, req api.SettingsRequest) error {
	return m.n.updateGroup(ctx, func(g *ag.Group) error {
		if r := req.CommitRule; r != nil {
			if *r != ag.RuleQuorum && *r != ag.RuleAll {
				return fail.Usagef("commit rule %q: QUORUM or ALL", *r)
			}
			g.CommitRule = *r
		}
		if t := req.SessionTimeout; t != nil {
			if *t < 2*time.Second || *t > 10*time.Minute {
				return fail.Usagef("the session timeout must be between 2 s and 10 min")
			}
			g.SessionTimeout = *t
		}
		return setRequired(g, req.Required)
	})
}

func setRequired(g *ag.Group, required *int) error {
	if required == nil {
		return nil
	}
	if *required < 0 {
		g.Required = nil
		return nil
	}
	if most := g.SynchronousBeside("") - 1; *required > most {
		return api.Refused(fmt.Sprintf("the group has %d synchronous secondaries; requiring %d would stop every commit", most, *required))
	}
	g.Required = required
	return nil
}
