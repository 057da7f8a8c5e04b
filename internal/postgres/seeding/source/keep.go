package source

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
)

// maxWAL returns the number of bytes of WAL that a window may make the server keep; 0: not limited.
func (s *Source) maxWAL() int64 {
	if s.cfg.MaxWAL != nil {
		if n := s.cfg.MaxWAL(); n > 0 {
			return n
		}
	}
	free, err := fileio.FreeSpace(filepath.Join(s.cfg.Data, "pg_wal")) // often on a disk of its own
	if err != nil {
		return 0
	}
	return free / 2
}

// check returns an error if the window may not continue: its session is lost, it keeps more WAL than the bound, or the
// server has removed WAL that the copy needs.
func (w *window) check(ctx context.Context, bound int64) error {
	now, err := w.insertLSN(ctx)
	if _, ended := w.wasEnded(); ended {
		return nil // meanwhile: its session is over, and the slot waits for the copy
	}
	if err != nil {
		return fmt.Errorf("the session of the backup is lost: %w", err)
	}
	if w.standby {
		return nil // the primary keeps the WAL
	}
	if kept := int64(now) - int64(w.info.Start); bound > 0 && kept > bound {
		return fmt.Errorf("the seeding of %s has made this server keep %d MiB of WAL, more than the %d MiB it may; make room or raise SEED_MAX_RATE",
			w.member, kept>>20, bound>>20)
	}
	return w.reserved(ctx)
}

// reserved returns an error if the window's slot has lost its WAL, as it does beyond max_slot_wal_keep_size.
func (w *window) reserved(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn == nil {
		return nil // it has just ended
	}
	var status, limit string
	err := w.conn.QueryRow(ctx, `SELECT coalesce(wal_status, ''), current_setting('max_slot_wal_keep_size') FROM pg_replication_slots WHERE slot_name = $1`, w.info.Slot).
		Scan(&status, &limit)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("the replication slot %s, which keeps the WAL for the seeding of %s, was dropped", w.info.Slot, w.member)
	case err != nil:
		return fmt.Errorf("the session of the backup is lost: %w", err)
	case status == "lost":
		return fmt.Errorf("WAL that the seeding of %s needs is removed: max_slot_wal_keep_size is %s; raise it, or SEED_MAX_RATE", w.member, limit)
	}
	return nil
}
