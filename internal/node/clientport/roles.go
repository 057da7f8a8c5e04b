package clientport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/postgres/login"
)

// roleTimeout bounds one question about a role that logs in to the console.
const roleTimeout = 3 * time.Second

// verifier returns the facts of a role from the node that will run the session. A role that does not exist there is not
// an error.
func (p *Port) verifier(ctx context.Context, id ag.ReplicaID, user string) (listener.Role, error) {
	var role login.Role
	var age time.Duration
	var err error
	if id == p.c.Self {
		role, age, err = p.Role(ctx, user)
	} else {
		r, unknown := p.replica(id)
		if unknown != nil {
			return listener.Role{}, unknown
		}
		role, age, err = p.c.Peers.Role(ctx, r, user)
	}
	if isNoRole(err) {
		return listener.Role{Rounds: role.Rounds}, nil
	}
	if err != nil {
		return listener.Role{}, err
	}
	out := roleOf(role)
	out.Age = age
	return out, nil
}

// Role returns a role as this node's server has it, and how old the copy may be that it was read from.
func (p *Port) Role(ctx context.Context, user string) (role login.Role, age time.Duration, err error) {
	server := p.c.Server()
	if server == nil {
		return role, 0, errNoServer
	}
	age = listener.UnknownAge
	if s := p.server.Load(); s != nil {
		age = s.Age()
	}
	role, err = server.Verifier(ctx, user)
	return role, age, err
}

// isNoRole reports whether a node has looked and has no such role.
func isNoRole(err error) bool {
	var remote *endpoint.RemoteError
	return errors.Is(err, login.ErrNoRole) || errors.As(err, &remote) && remote.Message == login.ErrNoRole.Error()
}

// roleOf returns the facts of a role as the listener wants them.
func roleOf(role login.Role) listener.Role {
	out := listener.Role{Found: true, Password: role.Password, CanLogin: role.CanLogin, Super: role.Super, Replication: role.Replication, MemberOf: role.MemberOf, Rounds: role.Rounds}
	if role.ValidUntil != nil { // '-infinity' is the zero time, which means no limit to the listener: it becomes 1970
		out.ValidUntil = time.Unix(max(role.ValidUntil.Unix(), 1), 0)
	}
	return out
}

// consoleRole returns the facts of a role that logs in to the console, which answers also where PostgreSQL does not.
// The primary's are asked for first, then those of copies that are not too old to say who may log in.
func (p *Port) consoleRole(ctx context.Context, user string) (listener.Role, error) {
	var leader ag.ReplicaID
	if s := p.c.Snapshot(); s != nil {
		leader = s.Record.Epoch.Leader
	}
	ask := func(id ag.ReplicaID) (listener.Role, error) {
		ctx, cancel := context.WithTimeout(ctx, roleTimeout)
		defer cancel()
		return p.verifier(ctx, id, user)
	}
	return firstCurrent(p.askOrder(leader), leader, cmp.Or(p.c.Node.AuthStaleness, time.Minute), ask)
}

// askOrder returns the replicas that may know a role: the leader, this node, the others.
func (p *Port) askOrder(leader ag.ReplicaID) []ag.ReplicaID {
	order := []ag.ReplicaID{p.c.Self}
	g := p.c.Group()
	if g == nil {
		return order
	}
	for _, r := range g.Replicas {
		switch {
		case r.ID == p.c.Self || !r.HasData():
		case r.ID == leader:
			order = append([]ag.ReplicaID{r.ID}, order...)
		default:
			order = append(order, r.ID)
		}
	}
	return order
}

// firstCurrent asks replicas in order about a role. It returns the first answer that is the leader's, or of a copy no
// older than staleness.
func firstCurrent(order []ag.ReplicaID, leader ag.ReplicaID, staleness time.Duration, ask func(ag.ReplicaID) (listener.Role, error)) (listener.Role, error) {
	var why []error
	for _, id := range order {
		role, err := ask(id)
		switch {
		case err != nil:
			why = append(why, err)
		case id != leader && role.Age > staleness:
			why = append(why, fmt.Errorf("the data of replica %s may be too old to say who may log in (auth_staleness in coterie.yaml: %v)", id, staleness))
		default:
			return role, nil
		}
	}
	return listener.Role{}, errors.Join(append(why, errors.New("no replica could be asked about the role; coterie sql on a node needs none"))...)
}
