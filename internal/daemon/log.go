package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/coteriedb/coterie/internal/lib/asyncwriter"
	"github.com/coteriedb/coterie/internal/lib/journald"
	"github.com/coteriedb/coterie/internal/lib/rotating"
)

// logQueue is the number of lines that may wait for the disk, and of records that may wait for the journal. Further
// ones are lost, and counted.
const logQueue = 4096

// Log is the log of an agent.
type Log struct {
	*slog.Logger // writes to agent.log, to a terminal and to the journal, whichever there are
	// Journal writes to the journal of systemd alone; nil: the agent does not run below systemd.
	Journal *slog.Logger

	end []func()
}

// Close waits at most a second for the queued lines of each target.
func (l *Log) Close() {
	for _, end := range l.end {
		end()
	}
}

// OpenLog returns a logger to agent.log in the node directory dir, to standard error if that is a terminal, and to the
// journal of systemd if standard error is connected to that. A large file is replaced by a new one. Logging never waits
// for a disk or the journal: the agent must still decide while one hangs. The caller closes the log.
func OpenLog(dir string, verbose bool) (*Log, error) {
	logDir := filepath.Join(dir, "log")
	if err := os.MkdirAll(logDir, 0o700); err != nil {
		return nil, err
	}
	f, err := rotating.Open(filepath.Join(logDir, "agent.log"))
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	level := slog.LevelInfo
	if verbose || os.Getenv("COTERIE_DEBUG") != "" {
		level = slog.LevelDebug
	}
	w := io.Writer(f)
	if st, err := os.Stderr.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
		w = io.MultiWriter(f, os.Stderr)
	}
	lines := asyncwriter.NewWriter(w, logQueue, func(n int) string {
		return fmt.Sprintf("level=ERROR msg=\"lines of this log are lost: the disk did not keep up\" lines=%d", n)
	})
	text := slog.NewTextHandler(lines, &slog.HandlerOptions{Level: level})
	l := &Log{Logger: slog.New(text), end: []func(){lines.Close, func() { _ = f.Close() }}}
	if journald.Connected() {
		h := journald.New(level, logQueue)
		l.Logger, l.Journal = slog.New(slog.NewMultiHandler(text, h)), slog.New(h)
		l.end = append(l.end, h.Close)
	}
	return l, nil
}
