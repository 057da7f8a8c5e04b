package tpcc

import (
	"bytes"
	"context"
	"io"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/measure/method"
)

// TestLoaderBesideCopy measures the cost of the generator: it compares a load with plain COPY of the same rows, made
// before, on as many connections and with the same indexes.
func TestLoaderBesideCopy(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("longer than the quick proof allows; make test-long runs it (COTERIE_LONG=1)")
	}
	loaded(t)
	if _, err := connect(t, shared.server.DSN()).Exec(t.Context(), "create database speed"); err != nil {
		t.Fatal(err)
	}
	dsn := "postgres://postgres@/speed?host=" + shared.server.Dir()
	o := LoadOptions{Warehouses: 1, Seed: testSeed, Parallel: 2}
	l := loader{dsn: dsn, chunks: population(o.Seed, o.Warehouses)}
	texts := make([][]byte, len(l.chunks))
	for i, c := range l.chunks {
		text, err := io.ReadAll(&chunkReader{chunk: c, done: new(atomic.Int64)})
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = text
	}
	plain := func(ctx context.Context) error {
		if err := createSchema(ctx, connect(t, dsn), o); err != nil {
			return err
		}
		if err := l.each(ctx, o.Parallel, len(texts), func(ctx context.Context, conn *pgx.Conn, i int) error {
			_, err := conn.PgConn().CopyFrom(ctx, bytes.NewReader(texts[i]), "copy tpcc."+l.chunks[i].table+" from stdin")
			return err
		}); err != nil {
			return err
		}
		if err := l.each(ctx, o.Parallel, len(indexes), l.buildIndex); err != nil {
			return err
		}
		_, err := connect(t, dsn).Exec(ctx, "analyze "+schemaTables())
		return err
	}
	ours := func(ctx context.Context) error { _, err := Load(ctx, dsn, o); return err }
	times := [2][]float64{}
	for _, order := range method.Blocks(1, 2, 4) {
		for _, arm := range order {
			start := time.Now()
			if err := []func(context.Context) error{plain, ours}[arm](t.Context()); err != nil {
				t.Fatal(err)
			}
			times[arm] = append(times[arm], time.Since(start).Seconds())
		}
	}
	speed := 100 * method.Median(times[0]) / method.Median(times[1])
	t.Logf("plain COPY %.1f s, the loader %.1f s: %.0f %% of its speed", method.Median(times[0]), method.Median(times[1]), speed)
	if speed < 30 { // the goal is 80, on an idle machine; this only finds what is broken
		t.Errorf("the loader has %.0f %% of COPY's speed", speed)
	}
}
