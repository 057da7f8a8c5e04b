package observe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// AgentPID returns the process of the agent of a node.
func AgentPID(ctx context.Context, l Lab, node string) (int, error) {
	st, err := Status(ctx, l, node)
	if err != nil {
		return 0, fmt.Errorf("ask %s: %w", node, err)
	}
	p := Own(st).Local
	if p == nil {
		return 0, fmt.Errorf("%s does not name its process", node)
	}
	return p.Agent, nil
}

// ticks is the number of clock ticks per second in /proc, which Linux fixes for programs.
const ticks = 100

// CPUTime returns the processor time of a process since its start, in steps of 10 ms.
func CPUTime(pid int) (time.Duration, error) {
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

// AnonymousMB returns the anonymous memory of a process in MB.
func AnonymousMB(pid int) (mb float64, err error) {
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
