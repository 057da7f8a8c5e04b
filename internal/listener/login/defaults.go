package login

import (
	"context"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// intentOf returns the client's intent.
func (c *Client) intentOf(ctx context.Context) ag.Intent {
	var set map[string]string
	if !c.readOnly && c.Start.Intent == "" {
		set = c.srv.settings(ctx, c.Start.User, c.Start.Database)
	}
	return startup.IntentOf(c.readOnly, c.Start, set)
}

// settings returns those of the role in the database. It returns none if they cannot be read.
func (s *Logins) settings(ctx context.Context, user, database string) map[string]string {
	set, err := s.defaults.ask(ctx, s, user, database)
	if err != nil {
		s.Log.Debug("defaults of the role not known", "user", user, "error", err)
		return nil
	}
	return set
}

// takeLag finds by how much a reader's copy may be behind: by the startup packet, else by the defaults of the role or
// the database. Writers go to the primary, which is never behind.
func (c *Client) takeLag(ctx context.Context) *pgwire.Error {
	if c.Intent != ag.ReadOnly {
		return nil
	}
	if c.MaxLag = c.Start.MaxLag; c.MaxLag == 0 {
		if text := c.srv.settings(ctx, c.Start.User, c.Start.Database)["coterie.max_lag"]; text != "" {
			var bad *pgwire.Error
			if c.MaxLag, bad = startup.ParseLag(pgwire.Parameter{Name: "coterie.max_lag", Value: text}); bad != nil {
				return bad
			}
		}
	}
	if c.MaxLag > 0 && c.srv.Near == nil {
		return pgwire.Fatal("max_lag", pgwire.StateNotSupported, "coterie.max_lag is not available here")
	}
	return nil
}

const (
	// defaultsAge is how long defaults of a role are cached.
	defaultsAge = time.Second
	// maxDefaults is how many pairs of role and database are cached. Names come from clients that have proved nothing.
	maxDefaults = 1000
)

// defaults caches the settings of roles in databases for a moment, so that a storm of logins asks once.
type defaults struct {
	mu    sync.Mutex
	known *admission.Recent[[2]string, knownDefaults] // guarded by mu; nil: empty
}

type knownDefaults struct {
	set map[string]string
	at  time.Time
}

// now returns the settings if they are known without asking.
func (d *defaults) now(s *Logins, user, database string) (set map[string]string, known bool) {
	if s.Defaults == nil {
		return nil, true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if key := [2]string{user, database}; d.known != nil && d.known.Has(key) {
		k := d.known.At(key)
		return k.set, time.Since(k.at) < defaultsAge
	}
	return nil, false
}

// ask returns the settings, and asks the server if they are not cached.
func (d *defaults) ask(ctx context.Context, s *Logins, user, database string) (map[string]string, error) {
	if set, known := d.now(s, user, database); known {
		return set, nil
	}
	at := time.Now()
	set, err := s.Defaults(ctx, user, database)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known = admission.NewRecent[[2]string, knownDefaults](maxDefaults)
	}
	*d.known.At([2]string{user, database}) = knownDefaults{set, at}
	return set, nil
}
