package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// answer is what a tool said last.
type answer struct {
	at  time.Time
	out []byte
	err error
}

// ask returns what a tool says, or said less than a minute ago.
func (r *Reader) ask(ctx context.Context, name string, args ...string) ([]byte, error) {
	key := strings.Join(append([]string{name}, args...), " ")
	r.mu.Lock()
	a, ok := r.answers[key]
	r.mu.Unlock()
	if ok && time.Since(a.at) < keepAnswer {
		return a.out, a.err
	}
	run := r.Run
	if run == nil {
		run = runTool
	}
	limited, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	a.out, a.err = run(limited, name, args...)
	if ctx.Err() != nil { // the caller has gone: that says nothing about the tool
		return nil, ctx.Err()
	}
	a.at = time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answers == nil || len(r.answers) > maxDevices {
		r.answers = map[string]answer{}
	}
	r.answers[key] = a
	return a.out, a.err
}

// forget makes the next ask run the tool, because files of the kernel have changed.
func (r *Reader) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = nil
}

// limited keeps the first bytes that are written to it.
type limited struct{ kept bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := maxText - l.kept.Len(); room > 0 {
		l.kept.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// runTool runs a tool of this machine in the C locale.
func runTool(ctx context.Context, name string, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Env = []string{"PATH=/usr/sbin:/sbin:/usr/bin:/bin", "LC_ALL=C"}
	c.WaitDelay = time.Second
	var out, says limited
	c.Stdout, c.Stderr = &out, &says
	if p, err := exec.LookPath("/usr/sbin/" + name); err == nil { // the caller's PATH often lacks it
		c.Path, c.Err = p, nil
	}
	err := c.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("there is no %s here", name)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s did not end within %v", name, runLimit)
	case err != nil:
		line, _, _ := strings.Cut(strings.TrimSpace(says.kept.String()), "\n")
		return nil, fmt.Errorf("%s %s: %w: %.200s", name, strings.Join(args, " "), err, line)
	}
	return out.kept.Bytes(), nil
}
