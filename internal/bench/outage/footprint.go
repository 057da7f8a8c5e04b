package outage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// idle measures the memory and the processor time of idle processes.
func (m *measurement) idle(ctx context.Context, pids map[string]int) ([]Idle, error) {
	m.Screen.Busy("idle agents, %v", settleIn+idleFor)
	if err := retry.Sleep(ctx, settleIn); err != nil {
		return nil, err
	}
	start, before := time.Now(), map[string]time.Duration{}
	for n, pid := range pids {
		t, err := observe.CPUTime(pid)
		if err != nil {
			return nil, err
		}
		before[n] = t
	}
	if err := retry.Sleep(ctx, idleFor); err != nil {
		return nil, err
	}
	var out []Idle
	for n, pid := range pids {
		t, err := observe.CPUTime(pid)
		if err != nil {
			return nil, err
		}
		anon, err := observe.AnonymousMB(pid)
		if err != nil {
			return nil, err
		}
		took := time.Since(start)
		one := Idle{Node: n, Seconds: took.Seconds(), CPU: 100 * float64(t-before[n]) / float64(took), RssAnonMB: anon}
		m.Screen.Say("%s idle: %.2f %% of a core, %.1f MB anonymous memory", n, one.CPU, one.RssAnonMB)
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Idle) int { return strings.Compare(a.Node, b.Node) })
	return out, nil
}

// witness measures the arms that need a witness.
func (m *measurement) witness(ctx context.Context, s *Samples) (err error) {
	m.Screen.Busy("lab up with a witness")
	m.lab, err = m.Witness(ctx, func(string) {})
	if err != nil {
		return err
	}
	defer func() { err = m.down(m.lab, err) }()
	name, err := witnessName(ctx, m.lab)
	if err != nil {
		return err
	}
	pid, err := observe.AgentPID(ctx, m.lab, name)
	if err != nil {
		return err
	}
	found, err := m.idle(ctx, map[string]int{name: pid})
	if err != nil {
		return err
	}
	s.Witness = &found[0]
	if s.WitnessDeath, err = m.witnessDeath(ctx, name); err != nil {
		return err
	}
	if err := m.lastSecondary(ctx, s); err != nil {
		return err
	}
	if err := m.cost(ctx, s); err != nil {
		return fmt.Errorf("cost: %w", err)
	}
	return nil
}
