// Command gotest runs `go test` with a log for people. It shows the running tests, the complete output of the tests
// that failed and none of those that passed, and at the end all skipped tests with their reasons.
//
//	gotest [-record FILE] [-heartbeat 10s] [go test flags and packages]
//
// The exit code is go test's.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	code, err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
	}
	if code != 0 {
		stop()
		os.Exit(code)
	}
}

// options separates our own flags, which come first.
func options(args []string) (record string, beat time.Duration, rest []string, err error) {
	beat = 10 * time.Second
	for len(args) >= 2 {
		switch args[0] {
		case "-record":
			record = args[1]
		case "-heartbeat":
			if beat, err = time.ParseDuration(args[1]); err != nil || beat <= 0 {
				return "", 0, nil, fmt.Errorf("-heartbeat %q is no duration", args[1])
			}
		default:
			return record, beat, args, nil
		}
		args = args[2:]
	}
	return record, beat, args, nil
}

func run(ctx context.Context, args []string, out io.Writer) (int, error) {
	path, beat, rest, err := options(args)
	if err != nil {
		return 2, err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, rest...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // go test passes it on to the tests
	cmd.WaitDelay = 30 * time.Second
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	r := newReport(out, began)
	follow(r, events, beat)
	code := 0
	if err := cmd.Wait(); err != nil {
		code = 1
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() > 0 {
			code = exit.ExitCode()
		} else {
			r.print(fmt.Sprintf("go test: %v\n", err))
		}
	}
	if code == 0 && (r.failed > 0 || !r.complete()) {
		code = 1 // go test succeeded, but its events contain a failure
	}
	var summary bytes.Buffer
	r.summary(&summary, time.Since(began))
	if _, err := out.Write(summary.Bytes()); err != nil {
		return 1, err
	}
	if path != "" {
		return code, record{rest, code, began, summary.Bytes()}.write(ctx, path)
	}
	return code, nil
}

// follow passes events to the report until there are no more. After a while without output it calls its beat.
func follow(r *report, events io.Reader, beat time.Duration) {
	lines := make(chan []byte)
	go func() { // ends with the pipe; the loop below reads all of it
		defer close(lines)
		in := bufio.NewReader(events)
		for {
			line, err := in.ReadBytes('\n')
			if len(line) > 0 {
				lines <- line
			}
			if err != nil {
				return
			}
		}
	}()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return
			}
			r.line(line)
		case now := <-tick.C:
			r.beat(now, beat)
		}
	}
}

// record is the result of a run.
type record struct {
	args    []string
	code    int
	began   time.Time
	summary []byte
}

// write writes the summary to path, with the command and the commit that are needed to repeat the run.
func (r record) write(ctx context.Context, path string) error {
	commit := "unknown"
	if b, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12").Output(); err == nil {
		commit = strings.TrimSpace(string(b))
	}
	verdict := "passed"
	if r.code != 0 {
		verdict = "FAILED"
	}
	text := fmt.Sprintf("date:    %s\ncommit:  %s\ncommand: go test %s\nresult:  %s\n\n%s",
		r.began.UTC().Format("2006-01-02 15:04 UTC"), commit, strings.Join(r.args, " "), verdict, r.summary)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // every user may read docs/
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644) //nolint:gosec // every user may read results
}
