package listener

import (
	"context"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// takeIntent finds what the client asked for and takes the listener's own settings out of those for PostgreSQL. Order:
// coterie.intent, ApplicationIntent, default_transaction_read_only, the database suffix. The read-only port comes before
// all of them and is the caller's to know.
func (s *startup) takeIntent() *pgwire.Error {
	var own, application ag.Intent
	var readOnlyDefault bool
	kept := s.settings[:0]
	for _, p := range s.settings {
		name := strings.ToLower(p.Name)
		var bad *pgwire.Error
		switch {
		case name == "coterie.intent":
			own, bad = parseIntent(p)
		case name == "applicationintent", name == "coterie.applicationintent":
			application, bad = parseIntent(p)
		case name == "coterie.reads":
			s.reads, bad = parseReads(p)
		case name == "coterie.max_lag":
			s.maxLag, bad = parseLag(p)
		case strings.HasPrefix(name, "coterie."):
			// client_addr, tls and whatever comes later are the listener's to say
		default:
			if name == "default_transaction_read_only" {
				readOnlyDefault, s.saysReadOnly = pgwire.ParseBool(p.Value)
			}
			kept = append(kept, p)
		}
		if bad != nil {
			return bad
		}
	}
	s.settings = kept
	switch {
	case own != "":
		s.intent = own
	case application != "":
		s.intent = application
	case readOnlyDefault || s.suffix:
		s.intent = ag.ReadOnly
	}
	return nil
}

func parseIntent(p pgwire.Parameter) (ag.Intent, *pgwire.Error) {
	switch strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(p.Value)) {
	case "readonly":
		return ag.ReadOnly, nil
	case "readwrite":
		return ag.ReadWrite, nil
	}
	bad := pgwire.Fatal("intent", pgwire.StateInvalidValue, "invalid value for parameter %q: %q", pgwire.Clip(p.Name), pgwire.Clip(p.Value))
	bad.Hint = "Available values: READ_ONLY, READ_WRITE."
	return "", bad
}

// intentOf is the client's intent.
func (c *client) intentOf(ctx context.Context) ag.Intent {
	var set map[string]string
	if !c.readOnly && c.start.intent == "" {
		set = c.srv.defaults(ctx, c.start.user, c.start.database)
	}
	return intentBy(c.readOnly, c.start, set)
}

// intentBy is the intent by the port, else by the startup packet, else by what was set for the role or the database, else READ_WRITE.
func intentBy(readOnly bool, start *startup, set map[string]string) ag.Intent {
	switch {
	case readOnly:
		return ag.ReadOnly
	case start.intent != "":
		return start.intent
	}
	if own := set["coterie.intent"]; own != "" {
		if own, bad := parseIntent(pgwire.Parameter{Name: "coterie.intent", Value: own}); bad == nil {
			return own
		}
	}
	if on, _ := pgwire.ParseBool(set["default_transaction_read_only"]); on && !start.saysReadOnly {
		return ag.ReadOnly
	}
	return ag.ReadWrite
}

// defaults asks what was set for sessions of the role in the database. Where that cannot be known, warnings count as switched off.
func (s *Server) defaults(ctx context.Context, user, database string) map[string]string {
	set, err := s.remembered.ask(ctx, s, user, database)
	if err != nil {
		s.log.Debug("defaults of the role not known", "user", user, "error", err)
		return map[string]string{mutingSetting: "unknown"}
	}
	return set
}
