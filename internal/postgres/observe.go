package postgres

import (
	"context"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Observation is what a running server says about itself at one moment.
type Observation struct {
	InRecovery      bool
	Timeline        ag.Timeline // of what it writes, or of what it replays
	Receive         ag.LSN      // in recovery: flushed by the walreceiver since start; 0 or low if it has not streamed
	Replay          ag.LSN      // in recovery: replayed
	Insert          ag.LSN      // as primary
	Flush           ag.LSN      // as primary: flushed; in recovery: the highest of Receive and Replay
	ReplayPaused    bool
	WalReceiver     *WalReceiver
	SyncNames       string // synchronous_standby_names in force in the observing session
	SyncSource      string // file that value comes from
	ConfLoadTime    time.Time
	Replication     []Walsender
	Slots           []Slot
	ServerVersion   int // server_version_num
	PostmasterStart time.Time
	SyncRepWaiters  int // sessions whose commit waits for synchronous replication
}

// WalReceiver is the row of pg_stat_wal_receiver.
type WalReceiver struct {
	PID         int
	Status      string
	ReceivedTLI ag.Timeline
	Written     ag.LSN
	Flushed     ag.LSN
	LatestEnd   ag.LSN
	Slot        string
	LastMessage time.Time
}

// Walsender is one row of pg_stat_replication.
type Walsender struct {
	PID         int
	Application string
	State       string
	SyncState   string
	Sent        ag.LSN
	Write       ag.LSN
	Flush       ag.LSN
	Replay      ag.LSN
	ReplyTime   time.Time
}

// Slot is one row of pg_replication_slots.
type Slot struct {
	Name      string
	Type      string // physical or logical
	Active    bool
	ActivePID int
	Restart   ag.LSN // 0 while it reserves nothing
	WALStatus string // reserved, extended, unreserved, lost
	Temporary bool
}

// Observe asks the server about itself through the instance's permanent session, within two seconds.
func (i *Instance) Observe(ctx context.Context) (Observation, error) { return Observation{}, errTODO }
