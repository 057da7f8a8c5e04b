package tpcc

import (
	"context"
	_ "embed" // the schema
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/measure/session"
)

//go:embed schema.sql
var schemaSQL string

//go:embed functions.sql
var functionsSQL string

// indexes are built after the rows are loaded, the slowest first. There are no foreign keys.
var indexes = []string{
	`alter table tpcc.order_line add primary key (ol_w_id, ol_d_id, ol_o_id, ol_number)`,
	`alter table tpcc.stock add primary key (s_w_id, s_i_id)`,
	`alter table tpcc.item add primary key (i_id)`,
	`alter table tpcc.customer add primary key (c_w_id, c_d_id, c_id)`,
	`alter table tpcc.orders add primary key (o_w_id, o_d_id, o_id)`,
	`create index customer_name on tpcc.customer (c_w_id, c_d_id, c_last, c_first)`,
	`create index orders_customer on tpcc.orders (o_w_id, o_d_id, o_c_id, o_id)`,
	`alter table tpcc.new_order add primary key (no_w_id, no_d_id, no_o_id)`,
	`alter table tpcc.district add primary key (d_w_id, d_id)`,
	`alter table tpcc.warehouse add primary key (w_id)`,
}

// tables in the order in which reports name them.
var tables = []string{
	"warehouse", "district", "customer", "history", "orders", "new_order", "order_line", "item", "stock",
}

// formatVersion changes whenever a seed gives other rows than before.
const formatVersion = 1

const appName = "coterie bench"

// ErrNotOurs is why Load leaves a schema alone.
var ErrNotOurs = errors.New("schema tpcc exists and was not made by this tool (it has no table tpcc.coterie_bench): " +
	"load into another database, or drop the schema yourself")

// LoadOptions describes what Load loads.
type LoadOptions struct {
	Warehouses int                     // default 1
	Seed       uint64                  // the same seed gives byte-identical rows
	Parallel   int                     // COPY streams; default 2
	Progress   func(done, total int64) // rows; called a few times a second by one goroutine, and first with what an earlier load made
	Resume     bool                    // continue an earlier Load of the same rows, which may have been interrupted, instead of replacing it
}

// Load creates schema tpcc and fills it, and returns how many rows that took. A schema tpcc that an earlier Load made
// is replaced, or, with Resume and the same rows, completed; any other is refused with ErrNotOurs.
func Load(ctx context.Context, dsn string, o LoadOptions) (rows int64, err error) {
	o.Warehouses = max(o.Warehouses, 1)
	if o.Parallel <= 0 {
		o.Parallel = 2
	}
	conn, err := session.Open(ctx, dsn, appName)
	if err != nil {
		return 0, err
	}
	defer closeConn(conn)
	l := loader{dsn: dsn, chunks: population(o.Seed, o.Warehouses)}
	there, complete, err := l.earlier(ctx, conn, o)
	if err != nil || complete {
		return 0, err
	}
	if !there {
		if err := createSchema(ctx, conn, o); err != nil {
			return 0, err
		}
	}
	for _, c := range l.chunks {
		l.total += int64(c.rows)
	}
	if o.Progress != nil {
		done, err := l.marked(ctx, conn)
		if err != nil {
			return 0, err
		}
		o.Progress(done, l.total)
	}
	stop := l.report(o.Progress)
	defer stop()
	if err := l.each(ctx, o.Parallel, len(l.chunks), l.copyChunk); err != nil {
		return 0, err
	}
	if err := l.each(ctx, o.Parallel, len(indexes), l.buildIndex); err != nil {
		return 0, err
	}
	if _, err := conn.Exec(ctx, "analyze "+schemaTables()); err != nil {
		return 0, fmt.Errorf("analyze: %w", err)
	}
	if _, err := conn.Exec(ctx, "update tpcc.coterie_bench set loaded_at = now()"); err != nil {
		return 0, fmt.Errorf("mark the load as ended: %w", err)
	}
	return l.made.Load(), nil
}

func schemaTables() string {
	list := ""
	for i, t := range tables {
		if i > 0 {
			list += ", "
		}
		list += "tpcc." + t
	}
	return list
}

func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx) // the connection is not used again
}

// createSchema makes the empty tables in one transaction, so that no schema without its mark is ever left behind.
func createSchema(ctx context.Context, conn *pgx.Conn, o LoadOptions) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var exists, ours bool
		const look = `select to_regnamespace('tpcc') is not null, to_regclass('tpcc.coterie_bench') is not null`
		if err := tx.QueryRow(ctx, look).Scan(&exists, &ours); err != nil {
			return fmt.Errorf("look for schema tpcc: %w", err)
		}
		if exists && !ours {
			return ErrNotOurs
		}
		if exists {
			if _, err := tx.Exec(ctx, "drop schema tpcc cascade"); err != nil {
				return fmt.Errorf("drop the earlier schema tpcc: %w", err)
			}
		}
		if _, err := tx.Exec(ctx, schemaSQL+functionsSQL); err != nil {
			return fmt.Errorf("create schema tpcc: %w", err)
		}
		const mark = `insert into tpcc.coterie_bench (version, seed, warehouses, c_last) values ($1, $2::text::numeric, $3, $4)`
		_, err := tx.Exec(ctx, mark, formatVersion, strconv.FormatUint(o.Seed, 10), o.Warehouses, loadConstants(o.Seed).last)
		if err != nil {
			return fmt.Errorf("mark schema tpcc: %w", err)
		}
		return nil
	})
}

// Drop removes schema tpcc if an earlier Load made it.
func Drop(ctx context.Context, dsn string) error {
	conn, err := session.Open(ctx, dsn, appName)
	if err != nil {
		return err
	}
	defer closeConn(conn)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		var ours bool
		if err := tx.QueryRow(ctx, `select to_regclass('tpcc.coterie_bench') is not null`).Scan(&ours); err != nil || !ours {
			return err
		}
		_, err := tx.Exec(ctx, "drop schema tpcc cascade")
		return err
	})
}

type loader struct {
	dsn    string
	chunks []chunk
	total  int64
	done   atomic.Int64 // rows that exist
	made   atomic.Int64 // of these, by this load
}

// earlier looks for a load of the same rows that can be completed, or is complete.
func (l *loader) earlier(ctx context.Context, conn *pgx.Conn, o LoadOptions) (there, complete bool, err error) {
	if !o.Resume {
		return false, false, nil
	}
	var marks bool
	const look = `select to_regclass('tpcc.coterie_bench') is not null and to_regclass('tpcc.coterie_bench_part') is not null`
	if err := conn.QueryRow(ctx, look).Scan(&marks); err != nil || !marks {
		return false, false, err
	}
	const same = `select loaded_at is not null from tpcc.coterie_bench where version = $1 and seed = $2::text::numeric and warehouses = $3`
	err = conn.QueryRow(ctx, same, formatVersion, strconv.FormatUint(o.Seed, 10), o.Warehouses).Scan(&complete)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, false, nil
	}
	return err == nil, complete, err
}

// marked counts the rows that an earlier load made.
func (l *loader) marked(ctx context.Context, conn *pgx.Conn) (rows int64, err error) {
	found, err := conn.Query(ctx, "select part from tpcc.coterie_bench_part where part >= 0")
	if err != nil {
		return 0, err
	}
	var part int
	_, err = pgx.ForEachRow(found, []any{&part}, func() error {
		rows += int64(l.chunks[part].rows)
		return nil
	})
	return rows, err
}

// once runs do in a transaction that also marks the part as done, unless an earlier load did it.
func once(ctx context.Context, conn *pgx.Conn, part int, do func() error) (did bool, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, "insert into tpcc.coterie_bench_part values ($1) on conflict do nothing", part)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		did = true
		return do()
	})
	return did, err
}

// report calls progress until the function it returns is called, which calls it a last time.
func (l *loader) report(progress func(done, total int64)) (stop func()) {
	if progress == nil {
		return func() {}
	}
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(250 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				progress(l.done.Load(), l.total)
			case <-quit:
				progress(l.done.Load(), l.total)
				return
			}
		}
	})
	return func() { close(quit); wg.Wait() }
}

// each calls do for 0 to n-1 on that many connections, and stops at the first error.
func (l *loader) each(ctx context.Context, parallel, n int, do func(context.Context, *pgx.Conn, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(parallel, n) {
		wg.Go(func() {
			conn, err := session.Open(ctx, l.dsn, appName)
			if err != nil {
				cancel(err)
				return
			}
			defer closeConn(conn)
			for i := next.Add(1) - 1; i < int64(n) && ctx.Err() == nil; i = next.Add(1) - 1 {
				if err := do(ctx, conn, int(i)); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// buildIndex builds one; its part has a negative number.
func (l *loader) buildIndex(ctx context.Context, conn *pgx.Conn, i int) error {
	_, err := once(ctx, conn, -1-i, func() error {
		if _, err := conn.Exec(ctx, "set local maintenance_work_mem = '128MB'"); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, indexes[i])
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", indexes[i], err)
	}
	return nil
}

func (l *loader) copyChunk(ctx context.Context, conn *pgx.Conn, i int) error {
	c := l.chunks[i]
	did, err := once(ctx, conn, i, func() error {
		_, err := conn.PgConn().CopyFrom(ctx, &chunkReader{chunk: c, done: &l.done}, "copy tpcc."+c.table+" from stdin")
		return err
	})
	if err != nil {
		return fmt.Errorf("copy tpcc.%s: %w", c.table, err)
	}
	if did {
		l.made.Add(int64(c.rows))
	} else {
		l.done.Add(int64(c.rows))
	}
	return nil
}

// chunkReader makes a chunk's rows as they are read.
type chunkReader struct {
	chunk
	made int
	buf  []byte // rows made
	off  int    // how much of buf was read
	done *atomic.Int64
}

func (r *chunkReader) Read(p []byte) (int, error) {
	if r.off == len(r.buf) {
		if r.made == r.rows {
			return 0, io.EOF
		}
		before := r.made
		r.buf, r.off = r.buf[:0], 0
		for r.made < r.rows && len(r.buf) < len(p) {
			r.buf = r.row(r.buf, r.made)
			r.made++
		}
		r.done.Add(int64(r.made - before))
	}
	n := copy(p, r.buf[r.off:])
	r.off += n
	return n, nil
}
