package keeper

import (
	"errors"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Version is the protocol version this package speaks. The protocol is additive: unknown fields are ignored, and a
// keeper serves agents of later versions, so that an agent can be upgraded under a running server.
const Version = 1

// MaxLease bounds how far in the future a deadline may lie: no lease profile is longer.
const MaxLease = 20 * time.Second

// KillAfter is how long a fenced postmaster has, after SIGQUIT, to end its backends before all of them are killed.
const KillAfter = 300 * time.Millisecond

// SocketName is the keeper's socket inside the run directory.
const SocketName = "keeper.sock"

// StartRequest describes one start of PostgreSQL.
type StartRequest struct {
	Leader     bool     `json:"leader,omitempty"` // start as primary; only while armed for Epoch. Else started as a standby
	Epoch      ag.Epoch `json:"epoch,omitempty"`  // the armed epoch, when Leader
	Generation uint64   `json:"generation"`       // the agent's number of this start; 0: one more than the last
	Postgres   string   `json:"postgres"`         // absolute path of the postgres binary
	PGData     string   `json:"pgdata"`           // absolute path of the data directory
	Args       []string `json:"args,omitempty"`   // all arguments after the binary's name, -D included
	LogFile    string   `json:"log_file,omitempty"`
	Env        []string `json:"env,omitempty"` // the whole environment; empty: the keeper's own
}

// State is the state of a keeper, as it reports it.
type State struct {
	Version     int           `json:"version"`
	KeeperPID   int           `json:"keeper_pid"`
	Postmaster  int           `json:"postmaster"` // process id, 0: none
	Generation  uint64        `json:"generation"` // of the last start
	Armed       bool          `json:"armed"`
	Epoch       ag.Epoch      `json:"epoch"`    // the highest epoch it was ever armed for, as far as it remembers
	Deadline    time.Duration `json:"deadline"` // BOOTTIME at which it fences, when armed
	Leader      bool          `json:"leader"`   // the running server was started or has been promoted as primary
	Fenced      *Fenced       `json:"fenced,omitempty"`
	LastExit    string        `json:"last_exit,omitempty"` // how the last postmaster ended, as in "exit status 0"
	ExitCount   uint64        `json:"exit_count"`          // postmasters that ended since the keeper started
	Descendants int           `json:"descendants"`         // processes below the keeper, the postmaster included
	Ending      bool          `json:"ending"`              // a fence or stop is under way; no start is accepted
	PGData      string        `json:"pgdata,omitempty"`    // of the last start
}

// Fenced is the fsynced record of the last fence. The next fence replaces it.
type Fenced struct {
	Epoch  ag.Epoch  `json:"epoch"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"` // wall time, for people
}

// Exit reports that a postmaster has ended and that no process it forked is alive.
type Exit struct {
	PID        int    `json:"pid"`
	Generation uint64 `json:"generation"`
	Status     string `json:"status"`           // as in "exit status 1" or "signal: killed"
	Clean      bool   `json:"clean"`            // it shut down in order, with a shutdown checkpoint
	Fenced     bool   `json:"fenced,omitempty"` // a fence ended it
}

// The reasons for which a keeper refuses a request. Errors of Client wrap one of these.
var (
	ErrStaleEpoch = errors.New("epoch is lower than the keeper's")
	ErrDeadline   = errors.New("deadline out of bounds")
	ErrNotArmed   = errors.New("keeper is not armed for that epoch")
	ErrBusy       = errors.New("a server is running, starting or ending")
	ErrLeading    = errors.New("the server accepts writes")
	ErrObserver   = errors.New("this connection may only ask for the state")
	ErrRefused    = errors.New("keeper refused")
	ErrClosed     = errors.New("connection to the keeper has ended")
)

// codes are the sentinels' names on the wire.
var codes = map[string]error{
	"stale_epoch": ErrStaleEpoch, "deadline": ErrDeadline, "not_armed": ErrNotArmed, "busy": ErrBusy,
	"leading": ErrLeading, "observer": ErrObserver, "refused": ErrRefused,
}
