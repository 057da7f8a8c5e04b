package workload

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// Schema holds every table that the experiments make, but for package tpcc's.
const Schema = "coterie_bench"

// ErrNotOurs is returned for a schema that this program did not make.
var ErrNotOurs = errors.New("schema " + Schema + " exists and was not made by this tool (it has no table " + Schema + ".made): " +
	"use another database, or drop the schema yourself")

// RowBytes is about what one row of the table rows needs on disk, with its index.
const RowBytes = 260

// Open connects to where Schema is, made if it is not there, with nothing else in the search path.
func Open(ctx context.Context, dsn string) (*pgx.Conn, error) {
	conn, err := session.Open(ctx, dsn, appName)
	if err != nil {
		return nil, err
	}
	if err := own(ctx, conn); err != nil {
		closeConn(conn)
		return nil, err
	}
	return conn, nil
}

// own makes the schema and its mark in one transaction, or checks that they exist.
func own(ctx context.Context, conn *pgx.Conn) error {
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var exists, ours bool
		if err := tx.QueryRow(ctx, `select to_regnamespace($1) is not null, to_regclass($1 || '.made') is not null`, Schema).Scan(&exists, &ours); err != nil {
			return err
		}
		if exists && !ours {
			return ErrNotOurs
		}
		if exists {
			return nil
		}
		_, err := tx.Exec(ctx, `create schema coterie_bench;
			create table coterie_bench.made (at timestamptz not null default now());
			insert into coterie_bench.made default values;
			create table coterie_bench.loaded (what text not null, part int not null, primary key (what, part))`)
		return err
	})
	if err != nil {
		return fmt.Errorf("make schema %s: %w", Schema, err)
	}
	_, err = conn.Exec(ctx, "set search_path = coterie_bench, pg_catalog")
	return err
}

// part is how many rows one transaction of a load makes.
const part = 10_000

// LoadRows fills the table rows up to n of them, the same for the same n, part by part: an interrupted load continues
// where it was. It returns how many it had to make.
func LoadRows(ctx context.Context, dsn string, n int, progress func(done, total int)) (made int, err error) {
	conn, err := Open(ctx, dsn)
	if err != nil {
		return 0, err
	}
	defer closeConn(conn)
	if _, err := conn.Exec(ctx, `create table if not exists rows (id int primary key, grp int not null, amount numeric(8,2) not null, pad text not null)`); err != nil {
		return 0, fmt.Errorf("make table rows: %w", err)
	}
	for p := 0; p*part < n; p++ {
		size := min(part, n-p*part)
		did, err := loadPart(ctx, conn, p, size)
		if err != nil {
			return made, fmt.Errorf("load table rows: %w", err)
		}
		if did {
			made += size
		}
		if progress != nil {
			progress(min((p+1)*part, n), n)
		}
	}
	if made > 0 {
		if _, err := conn.Exec(ctx, "vacuum (analyze) rows"); err != nil {
			return made, fmt.Errorf("analyze table rows: %w", err)
		}
	}
	return made, nil
}

// loadPart makes one part, unless it exists. A part that was made smaller by an earlier load is filled up.
func loadPart(ctx context.Context, conn *pgx.Conn, p, size int) (did bool, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `insert into loaded values ('rows ' || $2::int, $1) on conflict do nothing`, p, size)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		did = true
		_, err = tx.Exec(ctx, `insert into rows
			select i, i % 1000, (i::int8 * 7919 % 1000000) / 100.0, repeat(md5(i::text), 6)
			from generate_series($1::int, $2::int) i on conflict do nothing`, p*part+1, p*part+size)
		return err
	})
	return did, err
}

// Drop removes Schema if this tool made it.
func Drop(ctx context.Context, dsn string) error {
	conn, err := session.Open(ctx, dsn, appName)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var exists, ours bool
		if err := tx.QueryRow(ctx, `select to_regnamespace($1) is not null, to_regclass($1 || '.made') is not null`, Schema).Scan(&exists, &ours); err != nil {
			return err
		}
		switch {
		case !exists:
			return nil
		case !ours:
			return ErrNotOurs
		}
		_, err := tx.Exec(ctx, "drop schema coterie_bench cascade")
		return err
	})
}
