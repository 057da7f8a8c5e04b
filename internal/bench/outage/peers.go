package outage

import (
	"cmp"
	"context"
	"fmt"

	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/ledger"
)

// peerGoals are the names of the peers that have goals.
var peerGoals = []string{"patroni", "patroni-floor"}

// startPeers starts the systems that are measured beside ours. A system that is not installed is not an error: its
// figures have the reason.
func (m *measurement) startPeers(ctx context.Context, s *Samples) ([]Peer, func() error, error) {
	none := func() error { return nil }
	switch {
	case m.Peers == nil:
		s.PeersWhy = cmp.Or(m.PeersWhy, "--with-peers was not given")
		return nil, none, nil
	case m.Runs == 0:
		s.PeersWhy = "--runs 0"
		return nil, none, nil
	}
	m.Screen.Busy("starting the peers")
	peers, end, err := m.Peers(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("start the peers: %w", err)
	}
	for _, p := range peers {
		s.Peers = append(s.Peers, PeerSamples{Name: p.Name(), About: p.About()})
		m.Screen.Say("%s: %v", p.Name(), p.About())
	}
	return peers, end, nil
}

// peerDeath is death for a peer: it kills the primary's node under the same writer and starts it again.
func (m *measurement) peerDeath(ctx context.Context, run int, p Peer) (Sample, error) {
	m.Screen.Busy("run %d of %d: %s: every replica back", run, m.Runs, p.Name())
	if err := p.Settle(ctx); err != nil {
		return Sample{}, err
	}
	m.Screen.Busy("run %d of %d: %s: node death", run, m.Runs, p.Name())
	s, err := m.writerOn(ctx, fmt.Sprintf("ledger-%03d-%s", run, p.Name()), ledger.WriterOptions{DSN: p.ReadWrite()}, p.DSN, func(ctx context.Context, l *ledger.Ledger) (Sample, error) {
		from, err := p.Primary(ctx)
		if err != nil {
			return Sample{}, err
		}
		s := Sample{From: from}
		if err := p.Kill(from); err != nil {
			return s, err
		}
		before := l.Progress().LastAck
		if err := observe.Await(ctx, peerBudget, "another primary and a write that it acknowledged", func(ctx context.Context) (bool, error) {
			to, err := p.Primary(ctx)
			if err != nil || to == from {
				return false, err
			}
			s.To = to
			return l.Progress().LastAck.After(before.Add(coolDown)), nil // later than any statement that was in flight at the kill
		}); err != nil {
			return s, err
		}
		return s, nil
	})
	if err != nil {
		return s, err
	}
	if err := p.Start(s.From); err != nil {
		return s, err
	}
	return s, p.Settle(ctx)
}

// peerFigures returns the ratio of our median outage to that of each peer.
func (s Samples) peerFigures(ours []float64, why string) []goals.Figure {
	if s.PeersWhy != "" {
		why = s.PeersWhy
	}
	var out []goals.Figure
	for _, name := range peerGoals {
		f := goals.Figure{Name: "node-death-outage-to-" + name, NotRun: why}
		for _, p := range s.Peers {
			var theirs []float64
			for _, one := range p.Deaths {
				theirs = append(theirs, one.OutageMS/1000)
			}
			if p.Name == name && len(ours) > 0 && len(theirs) > 0 {
				f = ratio(f.Name, median("", ours, ""), median("", theirs, ""))
			}
		}
		out = append(out, f)
	}
	return out
}

// ratio divides two medians. Its interval is the widest that the two intervals allow.
func ratio(name string, a, b goals.Figure) goals.Figure {
	return goals.Figure{Name: name, Measured: a.Measured / b.Measured, Low: a.Low / b.High, High: a.High / b.Low, HasInterval: true}
}
