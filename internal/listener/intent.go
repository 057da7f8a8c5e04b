package listener

import (
	"context"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// intentOf is the client's intent.
func (c *client) intentOf(ctx context.Context) ag.Intent {
	var set map[string]string
	if !c.readOnly && c.start.Intent == "" {
		set = c.srv.defaults(ctx, c.start.User, c.start.Database)
	}
	return startup.IntentOf(c.readOnly, c.start, set)
}

// defaults asks what was set for sessions of the role in the database. Where that cannot be known, warnings count as switched off.
func (s *Server) defaults(ctx context.Context, user, database string) map[string]string {
	set, err := s.remembered.ask(ctx, s, user, database)
	if err != nil {
		s.log.Debug("defaults of the role not known", "user", user, "error", err)
		return map[string]string{startup.WarningsSetting: "unknown"}
	}
	return set
}
