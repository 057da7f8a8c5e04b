package listener

import (
	"context"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// intentOf returns the client's intent.
func (c *client) intentOf(ctx context.Context) ag.Intent {
	var set map[string]string
	if !c.readOnly && c.start.Intent == "" {
		set = c.srv.defaults(ctx, c.start.User, c.start.Database)
	}
	return startup.IntentOf(c.readOnly, c.start, set)
}

// defaults returns the settings of the role in the database. If they cannot be read, warnings count as switched off.
func (s *Server) defaults(ctx context.Context, user, database string) map[string]string {
	set, err := s.defaultsCache.ask(ctx, s, user, database)
	if err != nil {
		s.log.Debug("defaults of the role not known", "user", user, "error", err)
		return map[string]string{warningsSetting: "unknown"}
	}
	return set
}

// checkReads refuses guarantees that this listener cannot give.
func (s *Server) checkReads(r startup.Reads, intent ag.Intent) *pgwire.Error {
	switch {
	case r == startup.ReadsConfirmed && intent == ag.ReadOnly:
		bad := pgwire.Fatal("reads", pgwire.StateInvalidValue, "coterie.reads = confirmed is for READ_WRITE sessions: a secondary is behind by its nature")
		bad.Hint = "coterie.reads = durable works on secondaries."
		return bad
	case r == startup.ReadsConfirmed && s.cfg.Confirm == nil, r == startup.ReadsDurable && s.cfg.Durable == nil:
		return pgwire.Fatal("reads", pgwire.StateNotSupported, "coterie.reads = %s is not available here", r)
	}
	return nil
}

const (
	// defaultsAge is how long defaults of a role are cached.
	defaultsAge = time.Second
	// maxDefaults is how many pairs of role and database are cached.
	maxDefaults = 1000
)

// defaultsCache caches the settings of roles in databases for a moment, so that a storm of logins asks once.
type defaultsCache struct {
	mu    sync.Mutex
	known map[[2]string]knownDefaults // guarded by mu
}

type knownDefaults struct {
	set map[string]string
	at  time.Time
}

// now returns the settings if they are known without asking.
func (d *defaultsCache) now(s *Server, user, database string) (set map[string]string, known bool) {
	if s.cfg.Defaults == nil {
		return nil, true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	k, ok := d.known[[2]string{user, database}]
	return k.set, ok && time.Since(k.at) < defaultsAge
}

// ask returns the settings, and asks the server if they are not cached.
func (d *defaultsCache) ask(ctx context.Context, s *Server, user, database string) (map[string]string, error) {
	if set, known := d.now(s, user, database); known {
		return set, nil
	}
	at := time.Now()
	set, err := s.cfg.Defaults(ctx, user, database)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil || len(d.known) >= maxDefaults {
		d.known = make(map[[2]string]knownDefaults)
	}
	d.known[[2]string{user, database}] = knownDefaults{set, at}
	return set, nil
}
