package programs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// ToolEnv returns the environment for PostgreSQL's tools: messages in English, and none of the caller's PG* variables,
// which would redirect them to another server.
func ToolEnv() []string {
	env := []string{"LC_ALL=C", "LANGUAGE=", "PGSYSCONFDIR=/nonexistent"}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "PG") && !strings.HasPrefix(e, "LC_") && !strings.HasPrefix(e, "LANG") {
			env = append(env, e)
		}
	}
	return env
}

// WithStderr adds the end of a command's standard error to its error.
func WithStderr(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) || len(exit.Stderr) == 0 {
		return err
	}
	return fmt.Errorf("%w: %s", err, LastText(exit.Stderr))
}

// LastText returns the end of a tool's output, for an error message.
func LastText(out []byte) string {
	s := strings.TrimSpace(string(out))
	if len(s) > 600 {
		s = "... " + s[len(s)-600:]
	}
	return s
}

// maxToolOutput bounds what is kept of a tool's output.
const maxToolOutput = 64 << 10

// RunLines runs a tool, calls each with every line of its output, and returns the end of the output. pg_rewind ends
// lines of its progress with a carriage return.
func RunLines(ctx context.Context, name string, args []string, each func(string)) ([]byte, error) {
	return Tool{Path: name, Args: args}.Run(ctx, each)
}

// Tool is a program of PostgreSQL with its arguments.
type Tool struct {
	Path string
	Args []string
	Dir  string // its working directory; "": that of this process
}

// Run is RunLines for the tool. The tool is killed when this process ends.
func (t Tool) Run(ctx context.Context, each func(string)) ([]byte, error) {
	cmd := exec.CommandContext(ctx, t.Path, t.Args...)
	cmd.Env, cmd.Dir = ToolEnv(), t.Dir
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	var kept []byte
	read := make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, maxToolOutput)
		lines.Split(splitLines)
		for lines.Scan() {
			line := strings.TrimSpace(lines.Text())
			if line == "" {
				continue
			}
			each(line)
			kept = append(append(kept, line...), '\n')
			kept = kept[max(0, len(kept)-maxToolOutput):]
		}
		_, _ = io.Copy(io.Discard, r) // a line too long for the scanner must not block the tool
	}()
	err := RunBound(cmd)
	_ = w.Close() // of a pipe: never fails
	<-read
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return kept, err
}

// splitLines is bufio.ScanLines for lines that end with \n or \r.
func splitLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if k := bytes.IndexAny(data, "\r\n"); k >= 0 {
		return k + 1, data[:k], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}
