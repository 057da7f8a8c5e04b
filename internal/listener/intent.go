package listener

import (
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
)

// takeIntent finds what the client asked for and takes the listener's own settings out of those for PostgreSQL. Order:
// coterie.intent, ApplicationIntent, default_transaction_read_only, the database suffix. The read-only port comes before
// all of them and is the caller's to know.
func (s *startup) takeIntent() *pgError {
	var own, application ag.Intent
	var readOnlyDefault bool
	kept := s.settings[:0]
	for _, p := range s.settings {
		name := strings.ToLower(p.name)
		var bad *pgError
		switch {
		case name == "coterie.intent":
			own, bad = parseIntent(p)
		case name == "applicationintent", name == "coterie.applicationintent":
			application, bad = parseIntent(p)
		case strings.HasPrefix(name, "coterie."):
			// client_addr, tls and whatever comes later are the listener's to say
		default:
			if name == "default_transaction_read_only" {
				readOnlyDefault, _ = parseBool(p.value)
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

func parseIntent(p setting) (ag.Intent, *pgError) {
	switch strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(p.value)) {
	case "readonly":
		return ag.ReadOnly, nil
	case "readwrite":
		return ag.ReadWrite, nil
	}
	bad := fatal("intent", stateInvalidValue, "invalid value for parameter %q: %q", clip(p.name), clip(p.value))
	bad.hint = "Available values: READ_ONLY, READ_WRITE."
	return "", bad
}
