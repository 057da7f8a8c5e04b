package seedbench

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"
)

// contents are kinds of data beside pgbench's rows: words, which compress to about a third, and noise, which does not
// compress.
var contents = []struct {
	name, column string
	row          func(r *rand.Rand, z *rand.Zipf) string // one row in the text format of COPY
}{
	{"text", "text", func(_ *rand.Rand, z *rand.Zipf) string {
		words := make([]string, 60)
		for i := range words {
			words[i] = word(z.Uint64())
		}
		return strings.Join(words, " ")
	}},
	{"noise", "bytea", func(r *rand.Rand, _ *rand.Zipf) string {
		var b [1000]byte
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return `\\x` + hex.EncodeToString(b[:])
	}},
}

// word returns the n-th word of a language in which frequent words are short.
func word(n uint64) string {
	const letters = "etaoinshrdlucmfwypvbgk"
	var b []byte
	for n += 22; n > 0; n /= 22 {
		b = append(b, letters[n%22])
	}
	return string(b)
}

// others copies databases with other contents over the fast link, every arm once in each round.
func (b *seedBench) others(ctx context.Context) error {
	if err := b.link("metro"); err != nil {
		return err
	}
	for i, c := range contents {
		if err := b.refill(ctx, i); err != nil {
			return fmt.Errorf("load %s: %w", c.name, err)
		}
		b.add("metro, "+c.name, b.seedOnce(ctx, armOurs, "AUTO", ""))
		for _, p := range baseBackups {
			b.add("metro, "+c.name, b.baseBackup(ctx, p.name, p.compress))
		}
	}
	return ctx.Err()
}

// refill replaces the rows of the database by rows of another kind.
func (b *seedBench) refill(ctx context.Context, kind int) error {
	c := contents[kind]
	b.say("loading %d MB of %s", b.o.SizeMB, c.name)
	conn, err := pgx.Connect(ctx, b.server.DSN())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for _, sql := range []string{
		"DROP TABLE IF EXISTS contents, pgbench_accounts, pgbench_branches, pgbench_tellers, pgbench_history",
		"CREATE TABLE contents (c " + c.column + ")", "ALTER TABLE contents ALTER c SET STORAGE PLAIN",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	in, out := io.Pipe()
	go func() {
		r := rand.New(rand.NewPCG(uint64(kind), 1)) //nolint:gosec // the same rows in every run
		z := rand.NewZipf(r, 1.1, 3, 20_000)
		size := int64(0)
		var err error
		for err == nil && size < int64(b.o.SizeMB)<<20 {
			row := c.row(r, z)
			if size += int64(len(row)); c.column == "bytea" {
				size -= int64(len(row) / 2)
			}
			_, err = io.WriteString(out, row+"\n")
		}
		_ = out.CloseWithError(err) // the error is for the reader, which may have ended
	}()
	_, err = conn.PgConn().CopyFrom(ctx, in, "COPY contents FROM STDIN")
	_ = in.Close()
	_, checkpoint := conn.Exec(ctx, "CHECKPOINT")
	return errors.Join(err, checkpoint)
}
