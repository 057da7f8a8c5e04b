package bench

import (
	"context"
	"errors"
	"time"
)

// ErrNotReady is what an instrument answers that is not built yet.
var ErrNotReady = errors.New("not built yet")

// Ledger is the client-side account of every row that was written and of what the server said about it.
type Ledger struct{}

// WriterOptions says how Ledger.Write writes.
type WriterOptions struct {
	DSN     string        // libpq URI; several hosts are tried in turn
	Clients int           // writers; default 1
	Every   time.Duration // pause between two rows of one writer; default 5 ms
	Timeout time.Duration // after which an operation's outcome is unknown; default 5 s
}

// Verdict is what became of the ledger's rows on one server.
type Verdict struct {
	Acknowledged, Lost, Unknown, UnknownPresent, Failed, FailedPresent, Duplicates int64
	LostIDs                                                                        []string // the first 20
	TwoServers                                                                     bool
}

// Outage is what the writers saw of an interruption.
type Outage struct {
	Longest                                  time.Duration
	Start, End                               time.Time
	PerClientP50, PerClientP95, PerClientMax time.Duration
	Reconnects                               int
	TimeTo90                                 time.Duration
}

// OpenLedger opens or creates the ledger in dir.
func OpenLedger(dir string) (*Ledger, error) { return &Ledger{}, nil }

// Close closes the ledger's file.
func (l *Ledger) Close() error { return nil }

// Prepare creates the ledger's table.
func (l *Ledger) Prepare(ctx context.Context, dsn string) error { return ErrNotReady }

// Write runs the writers until ctx ends.
func (l *Ledger) Write(ctx context.Context, o WriterOptions) error { return ErrNotReady }

// Verify compares the ledger with the rows that a server has.
func (l *Ledger) Verify(ctx context.Context, dsn string) (Verdict, error) {
	return Verdict{}, ErrNotReady
}

// Outage returns the longest interruption of all that was written.
func (l *Ledger) Outage() Outage { return Outage{} }

// OutageBetween is Outage for the acknowledgements between two instants.
func (l *Ledger) OutageBetween(from, to time.Time) Outage { return Outage{} }
