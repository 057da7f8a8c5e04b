package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
)

func OpenLog(dir string, verbose bool) (*slog.Logger, func(), error) {
	logDir := filepath.Join(dir, "log")
	if err := os.MkdirAll(logDir, 0o700); err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(filepath.Join(logDir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
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
	log := newPatientLog(w)
	end := func() {
		log.Close()
		_ = f.Close()
	}
	return slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: level})), end, nil
}
