package indoubt

import (
	"fmt"
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// Outcome is what is proved of a COMMIT.
type Outcome int

// The outcomes.
const (
	Unknown Outcome = iota
	Committed
	NotCommitted
)

// String returns the outcome as metrics name it.
func (o Outcome) String() string {
	return []string{"unknown", "committed", "aborted"}[o]
}

// Question returns the request that asks a new primary for the status of the transaction. Its answer is one row of four
// columns, of which the first two are for Read. pg_xact_status fails for a number that was never given, which the first
// branch avoids. A session that is DEFERRABLE by default must not wait for the transactions of others.
func (c *Commit) Question() []byte {
	xid := fmt.Sprintf("'%d'::pg_catalog.xid8", c.Xid)
	text := "SET transaction_deferrable = off; SELECT CASE WHEN " + xid + " OPERATOR(pg_catalog.>=) pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()) THEN '" + statusFuture +
		"' ELSE pg_catalog.pg_xact_status(" + xid + ") END, pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), '', ''"
	return pgwire.AppendMessage(nil, 'Q', pgwire.AppendCString(nil, text))
}

// The statuses by which anything is proved. Others are in progress, of a prepared transaction for example, and none.
const (
	statusFuture    = "future" // no transaction with that number or a higher one has ended
	statusCommitted = "committed"
	statusAborted   = "aborted"
)

// Status is what a primary says of a transaction.
type Status struct {
	Text     string
	Timeline ag.Timeline // that the primary writes; 0: not known
}

// Read returns the status of an answer to Question.
func Read(columns [4]string) Status {
	return Status{Text: columns[0], Timeline: timelineOf(columns[1])}
}

// Outcome returns what became of the COMMIT, by what the primary says that leads on the last of the timelines. These
// are its history, oldest first, as the record has it. The primary must have opened: what it had at the end of its
// recovery is then as durable as anything that is acknowledged.
//
// The COMMIT is in that history only if its transaction ended before the timeline was left on which it ran. Then its
// number was given before that, is given to no other, and has the status committed for ever. So any other status that
// is final proves that it is not, as does a number from which on nothing was committed before one of the switches. But
// committed proves something only if the number is not one that another transaction has got since: a primary that is
// lost takes numbers with it, which its successor gives again. Such a number is not below Kept of the successor, nor
// was it given on the same timeline after a crash (Reused).
func (c *Commit) Outcome(timelines []ag.TimelineEntry, s Status) Outcome {
	own := slices.IndexFunc(timelines, func(t ag.TimelineEntry) bool { return t.TLI == c.Timeline })
	if own < 0 || c.Xid == 0 || !linear(timelines) || timelines[len(timelines)-1].TLI != s.Timeline {
		return Unknown
	}
	since := timelines[own+1:]
	switch {
	case s.Text == statusAborted:
		return NotCommitted
	case len(since) == 0: // the transaction may still run, and may not be replicated if it has ended
		return Unknown
	case s.Text == statusFuture || slices.ContainsFunc(since, func(t ag.TimelineEntry) bool { return t.Xids.Lost != 0 && c.Xid >= t.Xids.Lost }):
		return NotCommitted
	case s.Text != statusCommitted || timelines[own].Reused || slices.ContainsFunc(since, func(t ag.TimelineEntry) bool { return c.Xid >= t.Xids.Kept }):
		return Unknown
	}
	return Committed
}

// linear reports whether each timeline leaves the one before it.
func linear(timelines []ag.TimelineEntry) bool {
	for i, t := range timelines[1:] {
		if t.Parent != timelines[i].TLI {
			return false
		}
	}
	return len(timelines) > 0
}
