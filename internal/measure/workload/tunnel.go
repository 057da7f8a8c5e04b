package workload

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/measure/method"
)

// Tunnel is the published workload of a replication link: rows with one long column, a commit after a number of rows,
// one session.
type Tunnel struct {
	Rows    int     // published: 10,000
	Bytes   int     // of the column; published: 4,000
	Every   int     // rows per commit; published: 250
	Payload Payload // default PayloadConstant, as published

	Pipelined bool // the statements of a transaction are sent at once, as a script that runs on the server does without round trips
}

// Payload is what is in the long column.
type Payload string

// The payloads, from the best case of any compression to the worst. PayloadText and PayloadRandom have another value in
// each row.
const (
	PayloadConstant Payload = "constant" // one letter, as published
	PayloadZeros    Payload = "zeros"    // bytes of zero
	PayloadText     Payload = "text"     // words
	PayloadRandom   Payload = "random"   // bytes that do not shrink
)

// Payloads are all of them.
var Payloads = []Payload{PayloadConstant, PayloadZeros, PayloadText, PayloadRandom}

// Rows names rows that hold it.
func (p Payload) Rows() string {
	if p == PayloadZeros || p == PayloadText {
		return "rows of " + string(p)
	}
	return string(p) + " rows"
}

// PublishedTunnel is the workload as published.
var PublishedTunnel = Tunnel{Rows: 10_000, Bytes: 4_000, Every: 250}

// Prepare makes the empty table. The column is stored as it is: PostgreSQL's own compression of long values would hide
// the link.
func (w Tunnel) Prepare(ctx context.Context, c *pgx.Conn) error {
	kind := fmt.Sprintf("char(%d)", w.Bytes)
	if w.Payload == PayloadZeros || w.Payload == PayloadRandom {
		kind = "bytea"
	}
	for _, sql := range []string{
		"DROP TABLE IF EXISTS tunnel", "CREATE TABLE tunnel (id int, pad " + kind + ")", "ALTER TABLE tunnel ALTER COLUMN pad SET STORAGE PLAIN",
	} {
		if _, err := c.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// Run inserts the rows and returns how long it took and how many were committed. With an error of ctx both count up to
// there.
func (w Tunnel) Run(ctx context.Context, c *pgx.Conn) (took time.Duration, committed int, err error) {
	next, err := w.values()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	for n := 0; n < w.Rows; n += w.Every {
		err := pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error { return w.transaction(ctx, tx, n, next) })
		if err != nil {
			return time.Since(began), n, errors.Join(err, ctx.Err())
		}
	}
	return time.Since(began), w.Rows, nil
}

// values returns what gives the long column of one row after the other.
func (w Tunnel) values() (next func() (any, error), err error) {
	switch w.Payload {
	case PayloadConstant, "":
		x := strings.Repeat("x", w.Bytes)
		return func() (any, error) { return x, nil }, nil
	case PayloadZeros:
		zeros := make([]byte, w.Bytes)
		return func() (any, error) { return zeros, nil }, nil
	case PayloadText:
		rng := mathrand.New(mathrand.NewPCG(1, uint64(w.Rows))) //nolint:gosec // text, no secret
		return func() (any, error) { return string(prose(nil, w.Bytes, rng)), nil }, nil
	case PayloadRandom:
		return func() (any, error) {
			b := make([]byte, w.Bytes)
			_, err := rand.Read(b)
			return b, err
		}, nil
	default:
		return nil, fmt.Errorf("no payload %q: choose among %v", w.Payload, Payloads)
	}
}

// transaction inserts the rows from n on, as many as are committed together.
func (w Tunnel) transaction(ctx context.Context, tx pgx.Tx, n int, next func() (any, error)) error {
	batch := &pgx.Batch{}
	for i := range min(w.Every, w.Rows-n) {
		pad, err := next()
		if err != nil {
			return err
		}
		if w.Pipelined {
			batch.Queue("INSERT INTO tunnel VALUES ($1, $2)", n+i, pad)
			continue
		}
		if _, err := tx.Exec(ctx, "INSERT INTO tunnel VALUES ($1, $2)", n+i, pad); err != nil {
			return err
		}
	}
	if batch.Len() == 0 {
		return nil
	}
	return tx.SendBatch(ctx, batch).Close()
}

// Commits measures single commits of one incompressible row, one after the other, with a pause between.
type Commits struct {
	Bytes int
	Count int
	Pause time.Duration
}

// Run returns the time of each commit.
func (w Commits) Run(ctx context.Context, c *pgx.Conn) ([]time.Duration, error) {
	if _, err := c.Exec(ctx, "CREATE TABLE IF NOT EXISTS single (pad bytea); ALTER TABLE single ALTER COLUMN pad SET STORAGE PLAIN; TRUNCATE single"); err != nil {
		return nil, err
	}
	var all []time.Duration
	b := make([]byte, w.Bytes)
	for range w.Count {
		if _, err := rand.Read(b); err != nil {
			return nil, err
		}
		began := time.Now()
		if _, err := c.Exec(ctx, "INSERT INTO single VALUES ($1)", b); err != nil {
			return all, err
		}
		all = append(all, time.Since(began))
		if !method.SleepUntil(ctx, time.Now().Add(w.Pause)) {
			return all, ctx.Err()
		}
	}
	return all, nil
}

// WALLoad logs WAL at a rate until ctx is done. Its commits are not waited for.
type WALLoad struct {
	BytesPerSecond int
	Chunk          int
	Noise          int // of 128 bytes so many are random: with 20, it shrinks about as far as the WAL of pgbench does
}

// Run returns how many bytes were logged.
func (w WALLoad) Run(ctx context.Context, c *pgx.Conn) (logged int, err error) {
	if _, err := c.Exec(ctx, "SET synchronous_commit = off"); err != nil {
		return 0, err
	}
	b := make([]byte, w.Chunk)
	next := time.Now()
	for method.SleepUntil(ctx, next) {
		for at := 0; at < len(b); at += 128 {
			if _, err := rand.Read(b[at:min(at+w.Noise, len(b))]); err != nil {
				return logged, err
			}
		}
		// A transactional message is flushed like any commit.
		if _, err := c.Exec(ctx, "SELECT pg_logical_emit_message(true, 'load', $1::bytea)", b); err != nil {
			if ctx.Err() != nil {
				break
			}
			return logged, err
		}
		logged += w.Chunk
		next = next.Add(time.Duration(w.Chunk) * time.Second / time.Duration(w.BytesPerSecond))
	}
	return logged, nil
}
