package standin

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Types of columns, by which pgBackRest reads them.
const (
	boolType = 16
	textType = 25
)

// result is the answer to a statement that the primary has done.
type result struct {
	columns []string
	types   []uint32
	row     []string
}

func texts(columns []string, row ...string) result {
	return result{columns, slicesOf(textType, len(row)), row}
}

func slicesOf(v uint32, n int) (out []uint32) {
	for range n {
		out = append(out, v)
	}
	return out
}

func truth(column string, yes bool) result {
	if yes {
		return result{[]string{column}, []uint32{boolType}, []string{"t"}}
	}
	return result{[]string{column}, []uint32{boolType}, []string{"f"}}
}

// rule is what is done with a statement that has the form.
type rule struct {
	form *regexp.Regexp
	// do does it at the primary; nil: this node's server has the same answer.
	do func(context.Context, *Standin) (result, error)
}

// rules are the statements that a primary gets from a backup by pgBackRest 2.45, and by the releases before it, with
// blanks made one.
var rules = []rule{
	{form(`set (?:search_path|client_encoding|application_name|max_parallel_workers_per_gather) = '?[\w \[\]-]+'?`), nil},
	{form(`select (?:\(select setting from pg_catalog\.pg_settings where name = '\w+'\)::\w+(?:, )?)+`), nil},
	{form(`select \(extract\(epoch from clock_timestamp\(\)\) \* 1000\)::bigint`), nil},
	{form(`select oid::oid, datname::text, (?:datlastsysoid::oid|\(select oid::oid from pg_catalog\.pg_database where datname = 'template0'\) as datlastsysoid) from pg_catalog\.pg_database`), nil},
	{form(`select oid::oid, spcname::text from pg_catalog\.pg_tablespace`), nil},
	{form(`select pg_catalog\.pg_is_in_recovery\(\)`), func(context.Context, *Standin) (result, error) { return truth("pg_is_in_recovery", false), nil }},
	{form(`select pg_catalog\.pg_try_advisory_lock\(\d+\)::bool`), func(ctx context.Context, s *Standin) (result, error) {
		a, err := s.step(ctx, backup.Lock)
		return truth("pg_try_advisory_lock", a.Locked), err
	}},
	{form(`select pg_catalog\.pg_walfile_name\(pg_catalog\.pg_current_wal_(?:insert_)?lsn\(\)\)::text`), segment(backup.Insert)},
	{form(`select pg_catalog\.pg_create_restore_point\('pgBackRest Archive Check'\)::text`), segment(backup.Mark)},
	{form(`select pg_catalog\.pg_walfile_name\(pg_catalog\.pg_switch_wal\(\)\)::text`), segment(backup.Switch)},
	{form(`select lsn::text as lsn, pg_catalog\.pg_walfile_name\(lsn\)::text as wal_segment_name from pg_catalog\.pg_(?:backup_start|start_backup)\([^;]+\) as lsn`), begin},
	{form(`select lsn::text as lsn, pg_catalog\.pg_walfile_name\(lsn\)::text as wal_segment_name, labelfile::text as backuplabel_file, ` +
		`spcmapfile::text as tablespacemap_file from pg_catalog\.pg_(?:backup_stop|stop_backup)\([^;]+\)`), finish},
}

func form(text string) *regexp.Regexp { return regexp.MustCompile(`^` + text + `$`) }

// ruleFor returns the rule for a statement; nil: there is none.
func ruleFor(statement string) *rule {
	statement = strings.Join(strings.Fields(statement), " ")
	for i := range rules {
		if rules[i].form.MatchString(statement) {
			return &rules[i]
		}
	}
	return nil
}

func segment(step backup.Step) func(context.Context, *Standin) (result, error) {
	return func(ctx context.Context, s *Standin) (result, error) {
		a, err := s.step(ctx, step)
		return texts([]string{"pg_walfile_name"}, a.Segment), err
	}
}

// begin begins the backup, and waits until this node's server has all of before it on its disk: pgBackRest looks at
// pg_control next, and then copies.
func begin(ctx context.Context, s *Standin) (result, error) {
	a, err := s.step(ctx, backup.Start)
	if err == nil {
		err = s.replay(ctx, a.LSN)
	}
	return texts([]string{"lsn", "wal_segment_name"}, a.LSN, a.Segment), err
}

// replay waits until this node's server has replayed the checkpoint with which the backup begins, and has made it its
// own: WAL before that is not replayed by a restore.
func (s *Standin) replay(ctx context.Context, lsn string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.ReplayLimit, ErrLags)
	defer cancel()
	s.Waiting(lsn)
	var replayed, checkpoint bool
	err := retry.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		if !replayed {
			return false, s.local.QueryRow(ctx, `SELECT coalesce(pg_last_wal_replay_lsn() > $1::text::pg_lsn, false)`, lsn).Scan(&replayed)
		}
		if _, err := s.local.Exec(ctx, `CHECKPOINT`); err != nil {
			return false, err
		}
		err := s.local.QueryRow(ctx, `SELECT checkpoint_lsn > $1::text::pg_lsn FROM pg_control_checkpoint()`, lsn).Scan(&checkpoint)
		return checkpoint, err
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// finish ends the backup, if this node's server is still the one that was copied: its session is that of the beginning.
func finish(ctx context.Context, s *Standin) (result, error) {
	var recovery bool
	if err := s.local.QueryRow(ctx, `SELECT pg_is_in_recovery()`).Scan(&recovery); err != nil {
		return result{}, fmt.Errorf("the server of this node was restarted during the backup: %w", err)
	}
	if !recovery {
		return result{}, errPromoted
	}
	a, err := s.step(ctx, backup.Stop)
	return texts([]string{"lsn", "wal_segment_name", "backuplabel_file", "tablespacemap_file"}, a.LSN, a.Segment, a.Label, a.Spaces), err
}

// messages returns the result as the server sends it.
func (r result) messages() []pgproto3.BackendMessage {
	var fields []pgproto3.FieldDescription
	var values [][]byte
	for i, name := range r.columns {
		fields = append(fields, pgproto3.FieldDescription{Name: []byte(name), DataTypeOID: r.types[i], DataTypeSize: -1, TypeModifier: -1})
		values = append(values, []byte(r.row[i]))
	}
	return []pgproto3.BackendMessage{
		&pgproto3.RowDescription{Fields: fields}, &pgproto3.DataRow{Values: values}, &pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")},
	}
}
