package seedjobs

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/postgres/seeding/source"
)

// SourceConfig is what the source of copies needs of its node. View and Facts are the agent's.
type SourceConfig struct {
	Data    string                                   // the data directory
	Connect func(context.Context) (*pgx.Conn, error) // to the server that runs on it
	AtOnce  int                                      // copies at the same time; 0: the source's default
	View    func() *ag.View
	Facts   func() agent.Facts
	Logger  *slog.Logger
}

// NewSource returns what serves copies of this node's server to the other members, while this node leads or follows the
// primary.
func NewSource(c SourceConfig) *source.Source {
	return source.New(source.Config{
		Data: c.Data, Connect: c.Connect, Logger: c.Logger, AtOnce: c.AtOnce,
		Leads: func() (ag.Epoch, bool) {
			f := c.Facts()
			return f.Epoch, f.Leading
		},
		Follows: func() (ag.Epoch, bool) { return follows(c.View()) },
	})
}

// follows returns the epoch whose primary this node's copy replays, and reports whether that epoch is in force and the
// copy sound.
func follows(v *ag.View) (ag.Epoch, bool) {
	if v == nil || v.Local.Server != ag.ServerRecovery || v.Local.Data != ag.DataPresent || v.Local.Quarantine != "" || v.Local.Source != v.Record.Epoch.Leader {
		return 0, false
	}
	return v.Local.SourceEp, v.Local.SourceEp == v.Record.Epoch.Epoch && v.Record.Epoch.Phase == ag.PhaseLead
}
