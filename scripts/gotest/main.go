// Command gotest runs `go test` with a log for people. It shows the running tests, the complete output of the tests
// that failed and none of those that passed, and at the end all skipped tests with their reasons.
//
//	gotest [-record FILE] [-heartbeat 10s] [-alone PACKAGE:TEST] [go test flags and packages]
//
// The test of -alone is run first, beside no other package, and left out of the rest. The exit code is go test's, of
// the first that fails.
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

// options are our own flags, and what is for go test.
type options struct {
	record string
	beat   time.Duration
	alone  string // PACKAGE:TEST
	rest   []string
}

// parse separates our own flags, which come first.
func parse(args []string) (o options, err error) {
	o = options{beat: 10 * time.Second, rest: args}
	for len(o.rest) >= 2 {
		value := o.rest[1]
		switch o.rest[0] {
		case "-record":
			o.record = value
		case "-heartbeat":
			if o.beat, err = time.ParseDuration(value); err != nil || o.beat <= 0 {
				return o, fmt.Errorf("-heartbeat %q is no duration", value)
			}
		case "-alone":
			if pkg, name, ok := strings.Cut(value, ":"); !ok || pkg == "" || name == "" {
				return o, fmt.Errorf("-alone %q is not PACKAGE:TEST", value)
			}
			o.alone = value
		default:
			return o, nil
		}
		o.rest = o.rest[2:]
	}
	return o, nil
}

// commands returns the arguments of each go test.
func (o options) commands() [][]string {
	pkg, name, ok := strings.Cut(o.alone, ":")
	if !ok {
		return [][]string{o.rest}
	}
	exactly := "^" + name + "$"
	return [][]string{{"-count=1", "-timeout=30m", "-run", exactly, pkg}, append([]string{"-skip", exactly}, o.rest...)}
}

func run(ctx context.Context, args []string, out io.Writer) (int, error) {
	o, err := parse(args)
	if err != nil {
		return 2, err
	}
	began := time.Now()
	r := newReport(out, began)
	code := 0
	for _, command := range o.commands() {
		failed, err := runTests(ctx, r, command, o.beat)
		if err != nil {
			return 1, err
		}
		if code == 0 {
			code = failed
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
	if o.record != "" {
		return code, record{o.commands(), code, began, summary.Bytes()}.write(ctx, o.record)
	}
	return code, nil
}

// runTests runs go test and returns its exit code.
func runTests(ctx context.Context, r *report, rest []string, beat time.Duration) (int, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, rest...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // go test passes it on to the tests
	cmd.WaitDelay = 30 * time.Second
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
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
	args    [][]string // of each go test
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
	commands := make([]string, 0, len(r.args))
	for _, args := range r.args {
		commands = append(commands, "go test "+strings.Join(args, " "))
	}
	text := fmt.Sprintf("date:    %s\ncommit:  %s\ncommand: %s\nresult:  %s\n\n%s",
		r.began.UTC().Format("2006-01-02 15:04 UTC"), commit, strings.Join(commands, "; "), verdict, r.summary)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // every user may read docs/
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644) //nolint:gosec // every user may read results
}
