package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// logFiles are the logs of a node, in the order in which they explain something.
var logFiles = []string{"agent.out", "agent.log", "keeper.log", "postgres.log"}

// LogLine is one line of a node's log.
type LogLine struct {
	Node string `json:"node"`
	File string `json:"file"`
	Line string `json:"line"`
}

// Logs gives the last lines of every log of a node, or of all nodes if none is named; with follow, also what comes, until ctx
// is done.
func (l *Lab) Logs(ctx context.Context, node string, last int, follow bool, to func(LogLine)) error {
	nodes := l.Nodes()
	if node != "" {
		n, err := l.node(node)
		if err != nil {
			return err
		}
		nodes = []Node{n}
	}
	var tails []*tail
	for _, n := range nodes {
		for _, f := range logFiles {
			t := &tail{node: n, file: f}
			for _, line := range t.lastLines(last) {
				to(LogLine{n.Name, f, line})
			}
			tails = append(tails, t)
		}
	}
	for follow {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(200 * time.Millisecond):
		}
		for _, t := range tails {
			for _, line := range t.more() {
				to(LogLine{t.node.Name, t.file, line})
			}
		}
	}
	return nil
}

// tail reads a growing file. A file that is not there yet has no lines.
type tail struct {
	node Node
	file string
	at   int64
}

// open opens the log without being led out of the node's directory, which another user may own.
func (t *tail) open() (*os.File, error) {
	root, err := os.OpenRoot(t.node.files())
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return root.Open(filepath.Join("log", t.file))
}

func (t *tail) lastLines(n int) []string {
	f, err := t.open()
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	const most = 256 << 10
	if st, err := f.Stat(); err == nil && st.Size() > most {
		t.at = st.Size() - most
	}
	lines := t.read(f)
	return lines[max(0, len(lines)-n):]
}

func (t *tail) more() []string {
	f, err := t.open()
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err == nil && st.Size() < t.at { // written anew
		t.at = 0
	}
	return t.read(f)
}

// read returns the whole lines from where it stopped.
func (t *tail) read(f *os.File) []string {
	b, err := io.ReadAll(io.NewSectionReader(f, t.at, 1<<20))
	if err != nil {
		return nil
	}
	end := bytes.LastIndexByte(b, '\n')
	if end < 0 {
		return nil
	}
	t.at += int64(end) + 1
	return strings.Split(string(b[:end]), "\n")
}

// nodeError is an error of one node, whose log explains it.
type nodeError struct {
	node string
	error
}

func (e nodeError) Unwrap() error { return e.error }

// explain adds the last log lines of the nodes that failed; without one it returns the error as it is.
func (l *Lab) explain(err error) error {
	var failed nodeError
	if !errors.As(err, &failed) {
		return err
	}
	n, nodeErr := l.node(failed.node)
	if nodeErr != nil {
		return err
	}
	var b strings.Builder
	for _, f := range logFiles {
		for _, line := range (&tail{node: n, file: f}).lastLines(8) {
			_, _ = fmt.Fprintf(&b, "\n  %s %s: %s", n.Name, f, line)
		}
	}
	if b.Len() == 0 {
		return err
	}
	return fmt.Errorf("%w\nthe last that %s logged:%s", err, n.Name, b.String())
}
