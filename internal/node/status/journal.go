package status

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// Bounds of a journal: decisions, events, and the length of a text in it. A control reply has a megabyte.
const (
	journalDecisions = 400
	journalEvents    = 300
	journalText      = 600
)

// statements remembers what was executed on this node lately, and how it ended where nobody waited for it.
type statements struct {
	mu   sync.Mutex // guards list
	list []catalog.Event
}

func (s *statements) add(e catalog.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e.At, e.What, e.Because = time.Now(), clipText(e.What), clipText(e.Because)
	s.list = append(s.list, e)
	s.list = s.list[max(0, len(s.list)-journalEvents/3):]
}

func (s *statements) all() []catalog.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list)
}

func clipText(s string) string { return clip(s, journalText) }

// clip returns a text of at most that many bytes, and a sign where it was longer.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && s[cut]&0xC0 == 0x80 { // within a character
		cut--
	}
	return s[:cut] + "…"
}

// eventKinds are the rules that fire when something happened, by what it happened to. The others are everyday work.
var eventKinds = map[ag.Rule]string{
	ag.RuleFenceDeposed: "leadership", ag.RuleFenceExpired: "leadership", ag.RuleFenceForeign: "leadership", ag.RuleRelease: "leadership",
	ag.RuleVote: "leadership", ag.RuleForce: "leadership", ag.RuleClaim: "leadership", ag.RuleRetake: "leadership", ag.RuleOutbid: "leadership",
	ag.RulePromote: "leadership", ag.RulePromoteAgain: "leadership", ag.RuleLead: "leadership", ag.RuleHandOver: "leadership",
	ag.RuleSync: "commits", ag.RuleDoubled: "commits", ag.RuleStepDown: "health", ag.RuleRestart: "health", ag.RuleAwaitQuorum: "health",
	ag.RuleQuarantined: "copy", ag.RuleSuspended: "copy", ag.RuleSeed: "copy", ag.RuleReseed: "copy", ag.RuleRewind: "copy", ag.RuleAwaitDrop: "copy",
}

// Journal returns what this node remembers of late, bounded for a reply.
func (s *Service) Journal() catalog.Journal {
	j := catalog.Journal{Events: s.Events(), Acts: s.acts.all()}
	for _, d := range s.Agent.Decisions() {
		j.Decisions = append(j.Decisions, catalog.Decision{At: d.At, Rule: string(d.Rule), Because: clipText(d.Because), Epoch: d.Epoch, Revision: d.Revision()})
	}
	j.Decisions, j.Events = j.Decisions[max(0, len(j.Decisions)-journalDecisions):], j.Events[max(0, len(j.Events)-journalEvents):]
	return j
}

// Events returns what happened to this node and is still remembered, the oldest first. An event that is not returned
// any more never is again.
func (s *Service) Events() (out []catalog.Event) {
	for _, d := range s.Agent.Decisions() {
		if kind, ok := eventKinds[d.Rule]; ok {
			out = append(out, catalog.Event{At: d.At, Epoch: d.Epoch, Kind: kind, What: d.Meaning(), Because: clipText(d.Because)})
		}
	}
	if s.Links != nil {
		for _, k := range s.Links.Describe() {
			for _, e := range k.Events {
				out = append(out, catalog.Event{At: e.At, Kind: "link", What: "link with " + string(k.Peer) + ": " + clipText(e.What), Because: clipText(e.Reason)})
			}
		}
	}
	out = append(out, s.executed.all()...)
	slices.SortStableFunc(out, func(a, b catalog.Event) int { return a.At.Compare(b.At) })
	return out
}

// NoteStatement keeps a statement that was executed on this node for the journal.
func (s *Service) NoteStatement(user, text string) {
	s.executed.add(catalog.Event{Kind: "statement", What: text, Because: "by " + user})
}

// NoteFailover keeps for the journal how a failover ended that was asked for on this node.
func (s *Service) NoteFailover(e ag.Epoch, what, because string) {
	s.executed.add(catalog.Event{Kind: "leadership", Epoch: e, What: what, Because: because})
}

// NoteCluster keeps for the journal what has become of a database cluster beside the group's.
func (s *Service) NoteCluster(what, because string) {
	s.executed.add(catalog.Event{Kind: "copy", What: what, Because: clipText(because)})
}

// journals asks every node in reach for its own. The journal of a node that does not answer is shown on that node:
// coterie explain.
func (s *Service) journals(ctx context.Context, g ag.Group, reach []ag.ReplicaID) map[ag.ReplicaID]catalog.Journal {
	return ofNodes(ctx, s.membersIn(g, reach), func(ctx context.Context, r ag.Replica) (catalog.Journal, error) {
		if r.ID == s.Self {
			return s.Journal(), nil
		}
		return rpc.Call(ctx, s.Calls, r, rpc.Journal, rpc.Nothing{})
	})
}

// settings asks every node in reach for those of its server.
func (s *Service) settings(ctx context.Context, g ag.Group, reach []ag.ReplicaID) map[ag.ReplicaID][]catalog.Setting {
	return ofNodes(ctx, s.membersIn(g, reach), func(ctx context.Context, r ag.Replica) ([]catalog.Setting, error) {
		if r.ID == s.Self {
			return s.Settings(ctx)
		}
		return rpc.Call(ctx, s.Calls, r, rpc.Settings, rpc.Nothing{})
	})
}

// Settings returns the settings of this node's server, and what decides who is admitted by its listener; none on a node
// without a server.
func (s *Service) Settings(ctx context.Context) ([]catalog.Setting, error) {
	if s.Server == nil {
		return nil, nil
	}
	found, err := s.Server.Settings(ctx)
	out := make([]catalog.Setting, len(found))
	for i, s := range found {
		out[i] = catalog.Setting(s)
	}
	if err == nil {
		out = append(out, s.Clients.Settings()...)
	}
	return out, err
}

// SettingsFor returns what another member is told of Settings: a replica all of them, a witness none that may be a
// secret. It has no copy of the data, so its thief shall not learn what leads to one.
func (s *Service) SettingsFor(ctx context.Context, replica bool) ([]catalog.Setting, error) {
	all, err := s.Settings(ctx)
	if !replica {
		all = slices.DeleteFunc(all, catalog.Setting.MayBeSecret)
	}
	return all, err
}

// membersIn returns this node and the others that are in reach.
func (s *Service) membersIn(g ag.Group, reach []ag.ReplicaID) []ag.Replica {
	return slices.DeleteFunc(slices.Clone(g.Replicas), func(r ag.Replica) bool { return r.ID != s.Self && !slices.Contains(reach, r.ID) })
}

// ofNodes asks the members at the same time. A member that does not answer is left out.
func ofNodes[T any](ctx context.Context, members []ag.Replica, ask func(context.Context, ag.Replica) (T, error)) map[ag.ReplicaID]T {
	ctx, cancel := context.WithTimeout(ctx, 2*reportLimit)
	defer cancel()
	answers, _ := rpc.Each(ctx, members, ask)
	return answers
}
