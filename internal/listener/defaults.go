package listener

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// intentOf returns the client's intent.
func (c *client) intentOf(ctx context.Context) ag.Intent {
	var set map[string]string
	if !c.readOnly && c.start.Intent == "" {
		set = c.srv.defaults(ctx, c.start.User, c.start.Database)
	}
	return startup.IntentOf(c.readOnly, c.start, set)
}

// defaults returns the settings of the role in the database. It returns none if they cannot be read.
func (s *Server) defaults(ctx context.Context, user, database string) map[string]string {
	set, err := s.defaultsCache.ask(ctx, s, user, database)
	if err != nil {
		s.log.Debug("defaults of the role not known", "user", user, "error", err)
		return nil
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
	// maxDefaults is how many pairs of role and database are cached. Names come from clients that have proved nothing.
	maxDefaults = 1000
)

// defaultsCache caches the settings of roles in databases for a moment, so that a storm of logins asks once.
type defaultsCache struct {
	mu    sync.Mutex
	known *admission.Recent[[2]string, knownDefaults] // guarded by mu; nil: empty
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
	if key := [2]string{user, database}; d.known != nil && d.known.Has(key) {
		k := d.known.At(key)
		return k.set, time.Since(k.at) < defaultsAge
	}
	return nil, false
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
	if d.known == nil {
		d.known = admission.NewRecent[[2]string, knownDefaults](maxDefaults)
	}
	*d.known.At([2]string{user, database}) = knownDefaults{set, at}
	return set, nil
}

// The functions below refuse statements that change a setting of the group, or weaken commits of other sessions
// (docs/internals/postgresql.md, "Settings of the agent"). A statement that arrives in one piece is replaced by one
// with which PostgreSQL reports the refusal, in its place among the answers. The session of any other is ended before
// PostgreSQL has all of it.

// textPiece is a piece of a Query or a Parse.
type textPiece struct {
	typ       byte
	b         []byte
	begins    bool // it is the first of the message,
	ends      bool // or the last
	hasHeader bool // the message begins in this chunk, so PostgreSQL has nothing of it
}

// observeChange follows a piece of a message that goes to the local server. It reports whether it has ended the
// session for that message.
func (x *session) observeChange(p textPiece) (ended bool) {
	if x.srv.cfg.Reserved == nil || !x.drained.local {
		return false
	}
	if p.begins {
		if x.changed = !p.ends || stmt.MentionsAlter(p.b); x.changed {
			x.changes.Begin(p.typ)
		}
	}
	if !x.changed {
		return false
	}
	x.changes.Piece(p.b, x.srv.refuse)
	bad := x.changes.Refused()
	if !p.ends || bad == nil {
		return false
	}
	x.srv.counts.reject(endSetting)
	x.srv.log.Warn("a change of a setting is refused", "session", x.id, "user", x.user, "reason", bad.Message)
	if !p.hasHeader {
		x.end(ending{reason: endSetting, why: bad.Message + "; " + bad.Hint})
		return true
	}
	name := []byte(nil)
	if p.typ == 'P' {
		name, _, _ = bytes.Cut(p.b, []byte{0})
	}
	x.instead = refusing(p.typ, name, bad)
	return false
}

func (s *Server) refuse(c stmt.Change) *stmt.Refusal {
	return stmt.Refuse(c, s.cfg.Reserved, s.cfg.RelaxedCommit != nil && s.cfg.RelaxedCommit())
}

// replaced returns what is written in place of a chunk whose last message is refused; else the chunk.
func (x *session) replaced(chunk []byte) []byte {
	if x.instead == nil {
		return chunk
	}
	chunk, x.instead = x.instead, nil
	return chunk
}

// refusing returns a Query, or a Parse of that name, that fails with the refusal.
func refusing(typ byte, name []byte, bad *stmt.Refusal) []byte {
	text := fmt.Sprintf("DO LANGUAGE plpgsql $coterie$ BEGIN RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege', MESSAGE = %s, DETAIL = %s, HINT = %s; END $coterie$",
		literal(bad.Message), literal(bad.Detail), literal(bad.Hint))
	var body []byte
	if typ == 'P' {
		body = append(append(body, name...), 0)
	}
	body = pgwire.AppendCString(body, text)
	if typ == 'P' {
		body = append(body, 0, 0) // no types of parameters
	}
	return pgwire.AppendMessage(nil, typ, body)
}

// literal returns a string constant with that text, in which it leaves out signs that other settings give a meaning.
func literal(text string) string {
	return "'" + strings.NewReplacer("'", "''", `\`, "", "$", "").Replace(text) + "'"
}
