package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/coteriedb/coterie/internal/lib/asyncwriter"
	"github.com/coteriedb/coterie/internal/lib/rotating"
)

// logQueue is the number of lines that may wait for the disk. Further ones are lost, and counted.
const logQueue = 4096

// OpenLog returns a logger to agent.log in the node directory dir, and to standard error if that is a terminal. A large
// file is replaced by a new one. Logging never waits for the disk: the agent must still decide while a disk hangs. The
// caller calls end, which waits at most a second for the queued lines.
func OpenLog(dir string, verbose bool) (logger *slog.Logger, end func(), err error) {
	logDir := filepath.Join(dir, "log")
	if err := os.MkdirAll(logDir, 0o700); err != nil {
		return nil, nil, err
	}
	f, err := rotating.Open(filepath.Join(logDir, "agent.log"))
	if err != nil {
		return nil, nil, fmt.Errorf("open the log: %w", err)
	}
	level := slog.LevelInfo
	if verbose || os.Getenv("COTERIE_DEBUG") != "" {
		level = slog.LevelDebug
	}
	w := io.Writer(f)
	if st, err := os.Stderr.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
		w = io.MultiWriter(f, os.Stderr)
	}
	log := asyncwriter.NewWriter(w, logQueue, func(n int) string {
		return fmt.Sprintf("level=ERROR msg=\"lines of this log are lost: the disk did not keep up\" lines=%d", n)
	})
	end = func() {
		log.Close()
		_ = f.Close()
	}
	return slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: level})), end, nil
}
