package postgres

import (
	"context"

	"github.com/coteriedb/coterie/internal/ag"
)

// Control is what pg_control says, as printed by pg_controldata.
type Control struct {
	SystemID       string
	State          string // as printed: "in production", "shut down", "shut down in recovery", "in archive recovery", ...
	Timeline       ag.Timeline
	PrevTimeline   ag.Timeline
	CheckPoint     ag.LSN
	Redo           ag.LSN
	MinRecoveryEnd ag.LSN
	MinRecoveryTLI ag.Timeline
	DataChecksums  bool
	WalLogHints    bool
	BlockSize      int
	WalBlockSize   int
	WalSegmentSize int
	CatalogVersion string
	Settings       map[string]int // max_connections and the other settings of the primary that a standby may not undercut
}

// Clean reports whether the server was shut down in order, as a primary or in recovery.
func (c Control) Clean() bool { return c.State == "shut down" || c.State == "shut down in recovery" }

// Control reads pg_control. The server may be running or stopped.
func (i *Instance) Control(ctx context.Context) (Control, error) { return Control{}, errTODO }
