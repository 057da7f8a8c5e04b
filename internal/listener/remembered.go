package listener

import (
	"context"
	"sync"
	"time"
)

const (
	// defaultsAge is how old what is remembered of the defaults of a role may be.
	defaultsAge = time.Second
	// maxRemembered is how many pairs of role and database are remembered.
	maxRemembered = 1000
)

// remembered is what was set for roles in databases, for a moment: a storm of logins asks once.
type remembered struct {
	mu    sync.Mutex
	known map[[2]string]knownDefaults // guarded by mu
}

type knownDefaults struct {
	set map[string]string
	at  time.Time
}

// now is what is known without asking.
func (d *remembered) now(s *Server, user, database string) (set map[string]string, known bool) {
	if s.cfg.Defaults == nil {
		return nil, true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	k, ok := d.known[[2]string{user, database}]
	return k.set, ok && time.Since(k.at) < defaultsAge
}

// ask asks where nothing is known.
func (d *remembered) ask(ctx context.Context, s *Server, user, database string) (map[string]string, error) {
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
	if d.known == nil || len(d.known) >= maxRemembered {
		d.known = make(map[[2]string]knownDefaults)
	}
	d.known[[2]string{user, database}] = knownDefaults{set, at}
	return set, nil
}
