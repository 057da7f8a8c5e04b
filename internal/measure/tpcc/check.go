package tpcc

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// Condition is the result of a consistency condition.
type Condition struct {
	Number     int // of clause 3.3.2
	Name       string
	Violations int64
	Sample     string // one violation in words, or empty
}

// Check evaluates the twelve conditions in one snapshot, on a primary or on a replica, busy or idle.
func Check(ctx context.Context, dsn string) ([]Condition, error) {
	_, found, err := CheckUnseen(ctx, dsn, func(string) bool { return false })
	return found, err
}

// CheckUnseen is Check for an address that leads to one server or another: it also names the server that answered, as
// tpcc.server() does, and evaluates nothing there if that one was seen.
func CheckUnseen(ctx context.Context, dsn string, seen func(server string) bool) (server string, found []Condition, err error) {
	err = snapshot(ctx, dsn, func(tx pgx.Tx) error {
		found = found[:0]
		if err := tx.QueryRow(ctx, "select tpcc.server()").Scan(&server); err != nil || seen(server) {
			return err
		}
		for _, c := range conditions {
			one, err := c.check(ctx, tx)
			if err != nil {
				return err
			}
			found = append(found, one)
		}
		return nil
	})
	return server, found, err
}

func (c condition) check(ctx context.Context, tx pgx.Tx) (Condition, error) {
	res := Condition{Number: c.number, Name: c.name}
	err := tx.QueryRow(ctx, `select count(*), coalesce(min(what), '') from (`+c.query+`) violations`).Scan(&res.Violations, &res.Sample)
	if err != nil {
		return res, fmt.Errorf("condition %d: %w", c.number, err)
	}
	return res, nil
}

// snapshotTries is how often a replica may cancel a snapshot because replay had to continue.
const snapshotTries = 5

// snapshot runs f in a read-only transaction of one snapshot, again if a replica cancelled it in favour of replay.
func snapshot(ctx context.Context, dsn string, f func(tx pgx.Tx) error) error {
	conn, err := session.Open(ctx, dsn, appName)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	opts := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	for try := 1; ; try++ {
		err := pgx.BeginTxFunc(ctx, conn, opts, f)
		var pg *pgconn.PgError
		if err == nil || try == snapshotTries || !errors.As(err, &pg) || pg.Code != "40001" {
			return err
		}
		select {
		case <-time.After(time.Duration(try) * 200 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// Digest returns a digest of what every user table of the database holds, whatever the physical order of its rows: two
// servers that replayed to the same position have the same. (Two loads of one seed differ in when they were made, as
// marked in tpcc.coterie_bench, and in nothing else.)
func Digest(ctx context.Context, dsn string) (string, error) {
	h := sha256.New()
	err := snapshot(ctx, dsn, func(tx pgx.Tx) error {
		h.Reset()
		// The text of a row must not depend on the session.
		const settings = `set local timezone = 'UTC'; set local datestyle = 'ISO'; set local intervalstyle = 'postgres';
			set local bytea_output = 'hex'; set local extra_float_digits = 1; set local search_path = pg_catalog`
		if _, err := tx.Exec(ctx, settings); err != nil {
			return fmt.Errorf("digest: %w", err)
		}
		names, err := userTables(ctx, tx)
		if err != nil {
			return fmt.Errorf("list tables: %w", err)
		}
		for _, name := range names {
			var rows, sum string
			sql := `select count(*)::text, coalesce(sum(hashtextextended(t::text, 0)::numeric), 0)::text from only ` + name + ` t`
			if err := tx.QueryRow(ctx, sql).Scan(&rows, &sum); err != nil {
				return fmt.Errorf("digest of %s: %w", name, err)
			}
			_, _ = fmt.Fprintln(h, name, rows, sum) // a hash never fails
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// userTables returns the quoted names of all permanent tables outside the catalogues. An unlogged table is empty on a
// replica.
func userTables(ctx context.Context, tx pgx.Tx) ([]string, error) {
	rows, err := tx.Query(ctx, `
		select format('%I.%I', nspname, relname) from pg_class c join pg_namespace n on n.oid = relnamespace
		where relkind = 'r' and relpersistence = 'p' and nspname <> 'information_schema' and nspname !~ '^pg_'
		order by nspname collate "C", relname collate "C"`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
