package pgbackrest

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Limits of one run of the program.
const (
	maxAnswer = 64 << 20 // of a JSON document: a name of a segment has some 200 bytes in it
	maxKept   = 16 << 10 // of the texts that an error may quote
	maxLine   = 64 << 10
	toEnd     = 10 * time.Second
)

// command is one run of the program.
type command struct {
	args []string
	in   string            // standard input
	env  []string          // added to its environment
	each func(line string) // called for each line of standard output; nil: they are kept, up to maxAnswer
}

// run runs the program in a process group of its own, and ends the group with the context. It returns the output.
func (t *Tool) run(ctx context.Context, c command) (string, error) {
	cmd := exec.CommandContext(ctx, t.program(), c.args...)
	cmd.Env, cmd.Dir = append(environment(), c.env...), "/"
	if c.in != "" {
		cmd.Stdin = strings.NewReader(c.in)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	grace := cmp.Or(t.Grace, toEnd)
	cmd.WaitDelay = grace
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	said := &tail{}
	cmd.Stderr = said
	if err := cmd.Start(); err != nil {
		return "", missing(err)
	}
	var answer strings.Builder
	var read sync.WaitGroup
	read.Go(func() {
		if c.each == nil {
			_, _ = io.Copy(&answer, io.LimitReader(out, maxAnswer+1))
		} else {
			lines := bufio.NewScanner(out)
			lines.Buffer(nil, maxLine)
			for lines.Scan() {
				_, _ = said.Write(append(lines.Bytes(), '\n'))
				c.each(lines.Text())
			}
		}
		_, _ = io.Copy(io.Discard, out) // the program must not wait for a reader
	})
	ended := make(chan struct{})
	go func() { // what is left of the group would keep the pipe open
		select {
		case <-ctx.Done():
			select {
			case <-ended:
			case <-time.After(grace):
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			}
		case <-ended:
		}
	}()
	read.Wait()
	err = cmd.Wait()
	close(ended)
	switch {
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // nothing of it is left
		return "", fmt.Errorf("pgbackrest has not answered within the time for it, so the repository is slow or does not answer: %w", context.DeadlineExceeded)
	case ctx.Err() != nil:
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		return "", fmt.Errorf("pgbackrest was ended: %w", context.Cause(ctx))
	case err != nil:
		return answer.String(), t.failure(err, said.String()+answer.String())
	case answer.Len() > maxAnswer:
		return "", errors.New("pgbackrest: its answer is too long")
	}
	return answer.String(), nil
}

// program returns the program's name or path.
func (t *Tool) program() string {
	if t.Program != "" {
		return t.Program
	}
	return "pgbackrest"
}

// environment is this process's without what would configure the program, or libpq, behind the node's back.
func environment() []string {
	env := []string{"LC_ALL=C.UTF-8"}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "PG") && !strings.HasPrefix(e, "LC_") && !strings.HasPrefix(e, "COTERIE_") && !strings.HasPrefix(e, "AWS_") {
			env = append(env, e)
		}
	}
	return env
}

// missing returns the error of a program that could not be started.
func missing(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return fail.Error{Kind: fail.Unhealthy, Err: errors.New("pgBackRest is not installed on this machine: apt-get install pgbackrest, or dnf install pgbackrest; then run this again")}
	}
	return fmt.Errorf("start pgbackrest: %w", err)
}

// ErrVersion means that this release of the program does not know the version of the cluster's PostgreSQL.
var ErrVersion = errors.New("this release of pgBackRest does not know this version of PostgreSQL")

// failure returns the error of a program that failed, with what it said.
func (t *Tool) failure(err error, said string) error {
	var errs []string
	for line := range strings.Lines(said) {
		if text, ok := message(line); ok {
			errs = append(errs, text)
		} else if len(errs) > 0 && strings.HasPrefix(line, "       ") { // more of the same message
			errs[len(errs)-1] += " " + strings.TrimSpace(line)
		}
	}
	text := strings.Join(errs, "; ")
	if text == "" {
		text = strings.TrimSpace(said)
	}
	if strings.Contains(said, "unexpected control version") { // with a server, that is a warning before another error
		err = errors.Join(ErrVersion, err)
	}
	return fmt.Errorf("pgbackrest: %s: %w", t.secrets.Hide(brief(text)), err)
}

// message returns the text of a line that tells of an error.
func message(line string) (string, bool) {
	_, text, ok := strings.Cut(line, "ERROR: ")
	if !ok || strings.HasPrefix(strings.TrimSpace(line), "[") {
		return "", false
	}
	return strings.TrimSpace(text), true
}

// tail keeps the end of what is written.
type tail struct {
	mu  sync.Mutex // guards buf: both outputs of a program are written to it
	buf []byte
}

// Write keeps the end of p.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	t.buf = t.buf[max(0, len(t.buf)-maxKept):]
	return len(p), nil
}

// String returns what was kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
