package source

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
)

// maxWAL returns the number of bytes of WAL that a window may make the server keep; 0: not limited.
func (s *Source) maxWAL() int64 {
	if s.cfg.MaxWAL != nil {
		if n := s.cfg.MaxWAL(); n > 0 {
			return n
		}
	}
	free, err := fileio.FreeSpace(filepath.Join(s.data(), "pg_wal")) // often on a disk of its own
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

// sweep drops the slots of windows that no longer exist. A former primary has them, too: as a secondary it would keep
// WAL for them until it leads again.
func (s *Source) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s.mu.Lock()
	s.left = false // what is left behind from here on is not seen for sure
	s.mu.Unlock()
	err := s.dropSlots(ctx)
	if err != nil {
		s.leave()
	}
	return err
}

// leave records that the slot of a window may be left behind: it could not be dropped with the window.
func (s *Source) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = true
}

// leftOver reports whether a slot may be left behind.
func (s *Source) leftOver() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left
}

func (s *Source) dropSlots(ctx context.Context) error {
	conn, err := s.cfg.Connect(ctx)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	rows, err := conn.Query(ctx, `SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'cot\_seed\_%' AND NOT active`)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range names {
		if member, ok := owned(name); ok && !s.busy(ag.ReplicaID(member)) {
			if _, err := conn.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, name); err != nil {
				return err
			}
			s.log.Info("slot of a seeding that has ended dropped", "slot", name)
		}
	}
	return nil
}

// busy reports whether a slot of that member may be in use.
func (s *Source) busy(m ag.ReplicaID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, begins := s.opening[m]; begins {
		return true
	}
	for _, w := range s.windows {
		if w.member == m && !w.standby {
			return true
		}
	}
	return false
}

// drop ends the rest of a window. A slot that cannot be dropped now is dropped by the next sweep.
func (s *Source) drop(w *window) {
	if err := w.drop(s.cfg.Connect); err != nil {
		s.leave()
		s.log.Warn("the slot of a seeding is not dropped yet", "slot", w.info.Slot, "err", err)
	}
}
