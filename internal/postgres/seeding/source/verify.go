package source

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/postgres/seeding/datadir"
	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// damagesNamed bounds the number of damaged pages that a report names.
const damagesNamed = 20

// VerifyOptions are the inputs of a verification.
type VerifyOptions struct {
	Data     string                                   // the data directory
	Connect  func(context.Context) (*pgx.Conn, error) // to the server that runs on it
	MaxRate  func() int64                             // bytes of files per second; nil or 0: unlimited
	Progress func(progress.Progress)                  // called at intervals, from one goroutine; may be nil
}

// Verify reads every page of a running server's files and checks its checksum. It changes nothing and delays no
// session. A page that the server is writing is read again; only a page that stays wrong is reported. It finds damage
// on disk even while the server has a good page in memory.
func Verify(ctx context.Context, o VerifyOptions) (pagesum.Report, error) {
	w := &window{data: o.Data}
	var err error
	if w.conn, err = o.Connect(ctx); err != nil {
		return pagesum.Report{}, fmt.Errorf("verify: connect to the server: %w", err)
	}
	defer closeConn(w.conn)
	if err := w.describe(ctx); err != nil {
		return pagesum.Report{}, fmt.Errorf("verify: %w", err)
	}
	if w.info.Start, err = w.insertLSN(ctx); err != nil {
		return pagesum.Report{}, fmt.Errorf("verify: %w", err)
	}
	if err := w.list(ctx); err != nil {
		return pagesum.Report{}, fmt.Errorf("verify: %w", err)
	}
	r := pagesum.Report{Checksums: w.info.Checksums}
	if !r.Checksums {
		return r, errors.New("verify: this cluster has no data checksums, so nothing can be told from its pages; pg_checksums --enable makes them while all servers are stopped")
	}
	v := &verifier{w: w, o: o, r: &r, pace: &progress.Pacer{Rate: o.MaxRate}, watch: progress.NewWatcher(o.Progress, func() (string, bool) { return "reading only", false })}
	w.pages = &pageReader{size: w.info.Page, verify: true, start: w.info.Start, insert: w.insertLSN}
	err = v.run(ctx)
	return r, err
}

type verifier struct {
	w     *window
	o     VerifyOptions
	r     *pagesum.Report
	pace  *progress.Pacer
	watch *progress.Watcher
	in    fileio.Reader
}

func (v *verifier) run(ctx context.Context) error {
	var files []wire.File
	total := int64(0)
	for _, f := range v.w.files {
		if _, pages := datadir.RelationFile(f.Space, f.Name); pages && !f.Dir {
			files = append(files, f)
			total += f.Size
		}
	}
	v.watch.Start(total, len(files))
	stop := v.watch.Run()
	defer stop()
	defer func() { _ = v.in.Close() }() // it was only read
	buf := make([]byte, wire.ChunkSize)
	for _, f := range files {
		if err := v.file(ctx, f, buf); err != nil {
			return err
		}
	}
	v.watch.Enter(progress.PhaseDone)
	return nil
}

// file reads a file chunk by chunk, and each page of a damaged chunk on its own.
func (v *verifier) file(ctx context.Context, f wire.File, buf []byte) error {
	for i := range f.Chunks() {
		if err := v.pace.Wait(ctx, wire.ChunkSize); err != nil {
			return context.Cause(ctx)
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		off, size := f.Span(i)
		v.pace.GiveBack(wire.ChunkSize - size)
		began := time.Now()
		n, err := v.w.pages.read(ctx, &v.in, position{v.w.path(f), f, off}, buf[:size])
		var bad *pagesum.CorruptError
		switch {
		case isGone(err):
			v.watch.Settled(size, 0)
			return nil // dropped meanwhile
		case errors.As(err, &bad):
			if n, err = v.pages(ctx, f, off, buf[:size]); err != nil {
				return err
			}
		case err != nil:
			return fmt.Errorf("verify: read %s: %w", f.Name, err)
		}
		v.watch.OnDisk(began)
		v.r.Pages, v.r.Bytes = v.r.Pages+int64(n/v.w.info.Page), v.r.Bytes+int64(n)
		v.watch.Settled(size, 0)
	}
	v.r.Files++
	return nil
}

// pages reads one page after another and records the damaged ones.
func (v *verifier) pages(ctx context.Context, f wire.File, off int64, buf []byte) (int, error) {
	size, total := v.w.info.Page, 0
	for at := 0; at+size <= len(buf); at += size {
		n, err := v.w.pages.read(ctx, &v.in, position{v.w.path(f), f, off + int64(at)}, buf[:size])
		var bad *pagesum.CorruptError
		switch {
		case errors.As(err, &bad):
			n = size
			if v.r.Damaged++; len(v.r.First) < damagesNamed {
				bad.File = filed(f)
				v.r.First = append(v.r.First, *bad)
			}
		case isGone(err):
			return total, nil
		case err != nil:
			return total, fmt.Errorf("verify: read %s: %w", f.Name, err)
		}
		total += n
	}
	return total, nil
}

// filed returns a file's path below the data directory.
func filed(f wire.File) string {
	if f.Space == 0 {
		return f.Name
	}
	return filepath.Join("pg_tblspc", fmt.Sprint(f.Space), f.Name)
}
