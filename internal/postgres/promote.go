package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// ErrTimeline means that a promotion did not, or could not, take the requested timeline id. If the server has left
// recovery it must be fenced: its timeline belongs to no member.
var ErrTimeline = errors.New("timeline id not available")

// maxSkip bounds the ids that one promotion may skip. A larger gap means a corrupt record, not a history of failed
// promotions.
const maxSkip = 100_000

// Promote ends recovery on exactly the timeline tli and returns how far WAL is flushed then: at or just beyond the end
// of recovery. A copy that has flushed that much has the whole change of timeline (docs/internals/safety.md,
// "Timelines" and "Promotion").
//
// PostgreSQL takes the id after the newest timeline of which it has a history file. So an empty history file is
// created for every skipped id. They stay, because secondaries ask for the file of every id below the newest.
//
// After an error other than ErrTimeline the server may or may not be promoted, now or later: fence, then look.
// Promoting again to the timeline that the server already writes succeeds.
func (i *Instance) Promote(ctx context.Context, tli ag.Timeline, budget time.Duration) (endOfRecovery ag.LSN, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, budget, fmt.Errorf("not out of recovery after %v", budget))
	defer cancel()
	o, err := i.Observe(ctx)
	if err != nil {
		return 0, fmt.Errorf("promote: %w", err)
	}
	if o.InRecovery {
		if err := i.skipTo(o.Timeline, tli); err != nil {
			return 0, fmt.Errorf("promote to timeline %d: %w", tli, err)
		}
		fault.Point("promote.skipped") // the timeline ids in between are taken; PostgreSQL is not promoted
		if err := i.leaveRecovery(ctx); err != nil {
			return 0, fmt.Errorf("promote to timeline %d: %w", tli, err)
		}
	}
	fault.Point("promote.left") // PostgreSQL has left recovery; its timeline is not checked
	p, err := i.identify(ctx)
	if err != nil {
		return 0, fmt.Errorf("promote to timeline %d: %w", tli, err)
	}
	if p.Timeline != tli {
		return 0, fmt.Errorf("promote to timeline %d: the server writes timeline %d: %w", tli, p.Timeline, ErrTimeline)
	}
	if _, err := i.History(ctx, tli); err != nil {
		return 0, fmt.Errorf("promote to timeline %d: %w: %w", tli, err, ErrTimeline)
	}
	return p.LSN, nil
}

// skipTo makes tli the id that PostgreSQL will choose next.
func (i *Instance) skipTo(current, tli ag.Timeline) error {
	if tli <= current || tli-current > maxSkip {
		return fmt.Errorf("the server replays timeline %d: %w", current, ErrTimeline)
	}
	if err := i.removeTrailingSkips(); err != nil {
		return err
	}
	files, err := i.historyFiles()
	if err != nil {
		return err
	}
	for known := range files {
		if known >= tli {
			return fmt.Errorf("timeline %d has a history file here already: %w", known, ErrTimeline)
		}
	}
	for id := current + 1; id < tli; id++ {
		if _, ok := files[id]; ok {
			continue
		}
		if err := createEmpty(i.historyPath(id)); err != nil {
			return fmt.Errorf("mark timeline %d as skipped: %w", id, err)
		}
	}
	return syncPath(i.path("pg_wal"))
}

func createEmpty(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = f.Sync()
	return errors.Join(err, f.Close())
}

// leaveRecovery requests promotion and waits for its end. It does not use the wait of pg_promote, which polls ten times
// a second.
func (i *Instance) leaveRecovery(ctx context.Context) error {
	return i.main.Do(ctx, func(c *pgx.Conn) error {
		sent, recovery := false, true
		if err := c.QueryRow(ctx, "SELECT pg_promote(false)").Scan(&sent); err != nil {
			return err
		}
		if !sent {
			return errors.New("the postmaster could not be told")
		}
		for {
			if err := c.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&recovery); err != nil {
				return err
			}
			if !recovery {
				return nil
			}
			if err := retry.Sleep(ctx, pollInterval); err != nil {
				return err
			}
		}
	})
}
