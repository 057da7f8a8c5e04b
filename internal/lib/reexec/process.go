package reexec

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Process is a helper that runs, with a pipe to its input and one from its output. Not safe for concurrent use.
type Process struct {
	In  io.WriteCloser
	Out io.Reader // read it to its end before Wait, which closes it

	name string
	cmd  *exec.Cmd
	said *tail
}

// waitDelay is how long Wait waits for pipes that a process started by the helper has kept open.
const waitDelay = 5 * time.Second

// Option changes how Start starts a helper.
type Option func(*start)

type start struct {
	err io.Writer
	in  func(func() error) error
}

// Stderr also passes on what the helper writes to its standard error.
func Stderr(to io.Writer) Option { return func(s *start) { s.err = to } }

// Within has in call the function that starts the process: from a thread that is in another network namespace, as an
// example.
func Within(in func(func() error) error) Option { return func(s *start) { s.in = in } }

// Start starts a helper, which is killed when ctx ends. The caller ends it by Stop, or by Kill and Wait.
func Start(ctx context.Context, spec Spec, options ...Option) (*Process, error) {
	s := start{err: io.Discard, in: func(f func() error) error { return f() }}
	for _, o := range options {
		o(&s)
	}
	cmd, err := spec.Command(ctx)
	if err != nil {
		return nil, err
	}
	p := &Process{name: spec.Name, cmd: cmd, said: &tail{}}
	cmd.Stderr = io.MultiWriter(p.said, s.err)
	cmd.WaitDelay = waitDelay
	if p.In, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if p.Out, err = cmd.StdoutPipe(); err != nil {
		_ = p.In.Close()
		return nil, err
	}
	if err := s.in(cmd.Start); err != nil {
		return nil, fmt.Errorf("start the helper %s: %w", spec.Name, err)
	}
	return p, nil
}

// Pid returns the number of the process.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Kill ends the process at once. The caller still has to call Wait.
func (p *Process) Kill() { _ = p.cmd.Process.Kill() } // it fails where the process has ended

// Stop closes the helper's input, which asks it to end, and waits for it.
func (p *Process) Stop() error {
	_ = p.In.Close() // closed already, or the helper has ended: Wait tells
	return p.Wait()
}

// Wait waits for the end of the process. The error of one that failed ends with the last lines of its standard error.
func (p *Process) Wait() error {
	err := p.cmd.Wait()
	if err == nil {
		return nil
	}
	if said := p.said.String(); said != "" {
		return fmt.Errorf("the helper %s: %w: %s", p.name, err, said)
	}
	return fmt.Errorf("the helper %s: %w", p.name, err)
}

// tailSize bounds what is kept of a helper's standard error, and tailLines what of it an error quotes.
const (
	tailSize  = 4 << 10
	tailLines = 5
)

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex // guards text
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if over := len(t.text) - tailSize; over > 0 {
		t.text = append(t.text[:0], t.text[over:]...)
	}
	return len(b), nil
}

// String returns the last lines.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return strings.Join(lines[max(0, len(lines)-tailLines):], "\n")
}
