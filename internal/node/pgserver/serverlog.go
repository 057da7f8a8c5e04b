package pgserver

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/listener/serverlog"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/postgres/diagnose"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

const (
	// settingsEvery is how often the settings of the log are read. A change of the configuration is noticed at once,
	// by what the server logs; a default of a role or a database is not.
	settingsEvery = 5 * time.Second
	// settingsAgain is the pause after a failure, as when the server is down.
	settingsAgain = 250 * time.Millisecond
	// settingsLeast is the least time between the beginnings of two readings.
	settingsLeast = 25 * time.Millisecond
)

// ServerLog keeps a reader of the server's log informed of the settings under which the server logs.
type ServerLog struct {
	Reader *serverlog.Reader
	pg     *postgres.Instance
	log    *slog.Logger
	said   string // the last weakness that was logged
}

// NewServerLog gives the reader the log that the keeper has. A keeper that is older has none, and the reader says so.
func NewServerLog(ctx context.Context, r *serverlog.Reader, c *keeper.Client, pg *postgres.Instance, log *slog.Logger) *ServerLog {
	f, err := c.Log(ctx)
	if err == nil {
		err = r.Use(f)
	}
	if err != nil {
		log.Warn("the server's log is not read", "err", err)
	}
	return &ServerLog{Reader: r, pg: pg, log: log}
}

// Run reads the settings, at intervals and when the log tells of a change, until ctx is done.
func (l *ServerLog) Run(ctx context.Context) error {
	for {
		began := time.Now()
		pause := settingsEvery
		if !l.read(ctx) {
			pause = settingsAgain
		}
		l.say()
		select {
		case <-ctx.Done():
			return nil
		case <-l.Reader.Changed():
			// At once after a reload, because answers are confirmed until then. A server that logs a lot in another
			// language announces a change with each message.
			if retry.Sleep(ctx, settingsLeast-time.Since(began)) != nil {
				return nil
			}
		case <-time.After(pause):
		}
	}
}

// read reads the settings and reports whether the server answered.
func (l *ServerLog) read(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	asked := l.Reader.Ask()
	found, err := l.pg.LogSettings(ctx)
	if err != nil {
		return false
	}
	l.Reader.Rely(settingsOf(found, serverlog.Knows(l.pg.Binary())), asked)
	return true
}

// settingsOf returns the settings as the reader judges them.
func settingsOf(found diagnose.LogSettings, known bool) serverlog.Settings {
	s := serverlog.Settings{
		Collector:   slices.Contains(found.Values["logging_collector"], "on"),
		Destination: found.Values["log_destination"], MinMessages: found.Values["log_min_messages"], Messages: found.Values["lc_messages"],
		Granted: found.Granted, Unknown: !known,
	}
	for _, d := range found.Defaults {
		s.Defaults = append(s.Defaults, serverlog.Default(d))
	}
	return s
}

// say logs a change of the weakness that a person can do something about.
func (l *ServerLog) say() {
	why := l.Reader.Weakness()
	if why == l.said || l.Reader.Unread() {
		return
	}
	l.said = why
	if why == "" {
		l.log.Info("the server's log tells of cancelled waits: commits are answered at once")
		return
	}
	l.log.Warn("each commit is confirmed by the secondaries once more before it is answered, as the server's log cannot be relied on", "because", why)
}
