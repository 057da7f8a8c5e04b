package window

import (
	"context"
	"errors"

	"github.com/coteriedb/coterie/internal/backup"
)

// steps are what is done in the session of a window. Their statements are constants.
var steps = map[backup.Step]func(context.Context, *window) (backup.StepAnswer, error){
	backup.Lock:   lock,
	backup.Insert: one(`SELECT pg_walfile_name(pg_current_wal_insert_lsn())`),
	backup.Mark:   one(`SELECT pg_create_restore_point('coterie backup')::text`),
	backup.Switch: one(`SELECT pg_walfile_name(pg_switch_wal())`),
	backup.Start:  begin,
	backup.Stop:   finish,
}

// one is a step whose answer is one text.
func one(statement string) func(context.Context, *window) (backup.StepAnswer, error) {
	return func(ctx context.Context, w *window) (a backup.StepAnswer, err error) {
		err = w.conn.QueryRow(ctx, statement).Scan(&a.Segment)
		return a, err
	}
}

func lock(ctx context.Context, w *window) (a backup.StepAnswer, err error) {
	err = w.conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(advisory)).Scan(&a.Locked)
	return a, err
}

func begin(ctx context.Context, w *window) (a backup.StepAnswer, err error) {
	if w.started {
		return a, errors.New("the backup was begun already")
	}
	start := `SELECT l::text, pg_walfile_name(l) FROM pg_backup_start('coterie, of a secondary', true) l`
	if w.major < 15 {
		start = `SELECT l::text, pg_walfile_name(l) FROM pg_start_backup('coterie, of a secondary', true, false) l`
	}
	err = w.conn.QueryRow(ctx, start).Scan(&a.LSN, &a.Segment)
	w.started = err == nil
	return a, err
}

func finish(ctx context.Context, w *window) (a backup.StepAnswer, err error) {
	if !w.started {
		return a, errors.New("the backup was not begun")
	}
	stop := `SELECT lsn::text, pg_walfile_name(lsn), labelfile, coalesce(spcmapfile, '') FROM pg_backup_stop(false)`
	if w.major < 15 {
		stop = `SELECT lsn::text, pg_walfile_name(lsn), labelfile, coalesce(spcmapfile, '') FROM pg_stop_backup(false, false)`
	}
	err = w.conn.QueryRow(ctx, stop).Scan(&a.LSN, &a.Segment, &a.Label, &a.Spaces)
	w.started = false
	return a, err
}
