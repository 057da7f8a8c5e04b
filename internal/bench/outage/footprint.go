package outage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
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
		t, err := cpuTime(pid)
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
		t, err := cpuTime(pid)
		if err != nil {
			return nil, err
		}
		anon, err := rssAnon(pid)
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
	pid, err := agentPID(ctx, m.lab, name)
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

func agentPID(ctx context.Context, l observe.Lab, node string) (int, error) {
	st, err := observe.Status(ctx, l, node)
	if err != nil {
		return 0, fmt.Errorf("ask %s: %w", node, err)
	}
	p := observe.Own(st).Local
	if p == nil {
		return 0, fmt.Errorf("%s does not name its process", node)
	}
	return p.Agent, nil
}

func cpuTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: too short", pid)
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * time.Second / ticks, errors.Join(err1, err2)
}

func rssAnon(pid int) (mb float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kb * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no RssAnon", pid)
}
