package operations

import (
	"context"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Restart has the agent replace itself.
func (s *Service) Restart(ctx context.Context, req api.RestartRequest) error {
	if s.Server == nil {
		return fail.Refusedf("a witness has no server to keep running; restart it with its service unit")
	}
	if err := s.Agent.Restart(ctx, agent.RestartOptions{Drain: req.Drain, Cut: req.Cut}); err != nil {
		return fail.Unhealthyf("not restarted, everything goes on as before: %w", err)
	}
	return nil
}
