package quorum

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/etcd"
)

const (
	// rosterEvery is how often the quorum is asked for its own list of members.
	rosterEvery = 5 * time.Second
	// rosterPatience is how long the list and the configuration may differ before it is said: while a member joins or
	// leaves, they do.
	rosterPatience = 30 * time.Second
)

// Roster is the quorum's own list of members, as this node read it last.
type Roster struct {
	Voters []uint64 // ids of the voting members, if two reads found that they are not those of the configuration; else nil
	Stray  string   // how the list and the configuration have differed for a while; "": they do not
}

// Roster returns the list that this node read last. Any goroutine may call it.
func (s *Service) Roster() Roster {
	if r := s.roster.Load(); r != nil {
		return *r
	}
	return Roster{}
}

// rosterTurn reads the list of members and compares it with the configuration.
func (s *Service) rosterTurn(ctx context.Context) {
	snap := s.Snapshot()
	if s.external() || snap == nil {
		return
	}
	members, err := s.calls.Members(ctx)
	if err != nil {
		return // without a majority there is nothing to compare with; status tells of that by itself
	}
	var next Roster
	switch differs := compareRoster(snap.Group, members); {
	case differs == "":
		s.strayed = time.Time{}
	case s.strayed.IsZero(): // a member may just have joined or left
		s.strayed = s.now()
	default:
		for _, m := range members {
			if !m.Learner {
				next.Voters = append(next.Voters, m.ID)
			}
		}
		if s.now().Sub(s.strayed) >= rosterPatience {
			next.Stray = differs
		}
	}
	s.roster.Store(&next)
}

// IsVoter reports whether a voter of the embedded quorum with that id is the member's, by the quorum's own list.
func (s *Service) IsVoter(ctx context.Context, id uint64, member ag.ReplicaID) (bool, error) {
	members, err := s.calls.Members(ctx)
	return slices.ContainsFunc(members, func(m etcd.MemberInfo) bool {
		return m.ID == id && m.Name == string(member) && !m.Learner
	}), err
}

// compareRoster returns how the quorum's list of members and the configuration differ; "": they do not.
func compareRoster(g ag.Group, members []etcd.MemberInfo) string {
	for _, r := range g.Replicas {
		if !g.Votes(r) {
			continue
		}
		i := slices.IndexFunc(members, func(m etcd.MemberInfo) bool { return m.ID == r.EtcdID })
		if i < 0 {
			return fmt.Sprintf("the configuration counts the vote of %s, and the quorum has no such member: complete its removal with coterie member remove %s on another member", r.ID, r.ID)
		}
		if members[i].Learner {
			return fmt.Sprintf("the configuration counts the vote of %s, and in the quorum it does not vote yet", r.ID)
		}
	}
	for _, m := range members {
		known := slices.ContainsFunc(g.Replicas, func(r ag.Replica) bool { return r.EtcdID == m.ID })
		if !known && !m.Learner {
			name := m.Name
			if name == "" {
				name = fmt.Sprintf("%x, which has never started", m.ID)
			}
			return fmt.Sprintf("the quorum has a voting member that the configuration does not count: %s; if it is to vote, start its agent; if not, coterie member remove %s", name, name)
		}
	}
	return ""
}
