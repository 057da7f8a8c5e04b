package tpcc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// ForbidAutovacuum disables autovacuum on the tables until allow is called. On a server with half a processor,
// autovacuum takes a good part of a run of seconds, and the arm that it meets looks slow. Vacuum does its work between
// the runs.
func ForbidAutovacuum(ctx context.Context, dsn string) (allow func() error, err error) {
	allow = func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second) // also after Ctrl-C
		defer cancel()
		return eachTable(ctx, dsn, "alter table %s reset (autovacuum_enabled)")
	}
	if err := eachTable(ctx, dsn, "alter table %s set (autovacuum_enabled = false)"); err != nil {
		return nil, errors.Join(err, allow()) // some tables may have been changed
	}
	return allow, nil
}

// Vacuum removes what the last run left behind.
func Vacuum(ctx context.Context, dsn string) error {
	return eachTable(ctx, dsn, "vacuum (analyze) %s")
}

func eachTable(ctx context.Context, dsn, statement string) (err error) {
	conn, err := session.Open(ctx, dsn, appName)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	for _, t := range tables {
		q := fmt.Sprintf(statement, pgx.Identifier{"tpcc", t}.Sanitize())
		if _, e := conn.Exec(ctx, q); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", q, e))
		}
	}
	return err
}
