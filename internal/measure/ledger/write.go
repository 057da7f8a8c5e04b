package ledger

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/session"
)

// WriterOptions describes how Ledger.Write writes.
type WriterOptions struct {
	DSN     string        // libpq URI; several hosts are tried in turn
	Clients int           // writers; default 1
	Every   time.Duration // from one row of a writer to its next; default 5 ms
	Timeout time.Duration // after which an operation's outcome is unknown; default 5 s
	PerHost time.Duration // for which one host is tried when connecting; default 2 s
}

const appName = "coterie ledger"

// Prepare creates the ledger's table, unless it exists. Several ledgers share it; a row belongs to the one it names. It
// has no unique key: a row that is present twice must show, not fail.
func (l *Ledger) Prepare(ctx context.Context, dsn string) error {
	conn, err := session.Open(ctx, dsn, appName)
	if err != nil {
		return fmt.Errorf("prepare the ledger's table: %w", err)
	}
	defer closeConn(conn)
	const ddl = `
		create schema if not exists coterie_ledger;
		create table if not exists coterie_ledger.entry (run text not null, client int not null, seq bigint not null, payload bytea not null);
		create index if not exists entry_key on coterie_ledger.entry (run, client, seq)`
	if _, err := conn.Exec(ctx, ddl); err != nil {
		return fmt.Errorf("prepare the ledger's table: %w", err)
	}
	return nil
}

func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx) // the connection is not used again
}

// Write runs the writers until ctx ends; that is not an error. A row that is under way then is completed. Nothing is
// ever sent twice: a row that a lost connection leaves in doubt stays so until Verify.
func (l *Ledger) Write(ctx context.Context, o WriterOptions) error {
	o.Clients = max(o.Clients, 1)
	if o.Every <= 0 {
		o.Every = 5 * time.Millisecond
	}
	writers := make([]*writer, o.Clients)
	if err := l.begin(); err != nil {
		return err
	}
	defer l.setWriting(false)
	for i := range writers {
		s, err := session.New(session.Options{DSN: o.DSN, Start: i, Timeout: o.Timeout, PerHost: o.PerHost, Name: appName})
		if err != nil {
			return err
		}
		writers[i] = &writer{ledger: l, client: i, seq: l.nextSeq(i), session: s, every: o.Every}
	}
	wctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, w := range writers {
		wg.Go(func() {
			if err := w.run(wctx); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	end := l.note(record{op: opEnd, at: boottime.Now()})
	if ctx.Err() == nil {
		end = errors.Join(context.Cause(wctx), end)
	}
	return end
}

// errWriting is returned by a second Write.
var errWriting = errors.New("the ledger is being written already: one Write at a time, with more clients")

func (l *Ledger) begin() error {
	l.mu.Lock()
	busy := l.writing
	l.writing = true
	l.mu.Unlock()
	if busy {
		return errWriting
	}
	if err := l.note(record{op: opBegin, at: boottime.Now()}); err != nil {
		l.setWriting(false)
		return err
	}
	return nil
}

func (l *Ledger) setWriting(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writing = on
}

// note makes r part of the file and then of the ledger. Acknowledgements, and the ends of a Write, wait for the disk.
func (l *Ledger) note(r record) error {
	end := l.journal.add(r.String())
	if r.op == opOK || r.op == opBegin || r.op == opEnd {
		if err := l.journal.sync(end); err != nil {
			return fmt.Errorf("write ledger: %w", err)
		}
	}
	return l.apply(r)
}

// writer is one client.
type writer struct {
	ledger  *Ledger
	client  int
	seq     int64 // of the next row
	session *session.Session
	every   time.Duration
}

// run writes rows until ctx ends. It returns an error if it could never connect, or if the ledger cannot be kept.
func (w *writer) run(ctx context.Context) error {
	defer w.session.Close()
	next := time.Now()
	for {
		if w.session.Conn() == nil {
			if err := w.connect(ctx); err != nil || ctx.Err() != nil {
				return err
			}
		}
		// A writer that is late takes up its pace again; it does not catch up, since that would look like a recovery.
		if now := time.Now(); next.Before(now) {
			next = now
		}
		if !method.SleepUntil(ctx, next) {
			return nil
		}
		next = next.Add(w.every)
		outcome, err := w.row(ctx)
		if err != nil {
			return err
		}
		if outcome == session.Fail {
			session.Pause(ctx)
		}
	}
}

func (w *writer) connect(ctx context.Context) error {
	if err := w.session.Connect(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("ledger writer: connect: %w", err)
	}
	return w.ledger.note(record{op: opConnect, at: boottime.Now(), client: w.client, host: w.session.Host()})
}

// insert is one transaction of one round trip. The result names the server and the timeline that answered this row, not
// those that answered the connect: a listener may move a session to another server. The position is that of the row,
// which is no later than its commit.
const insert = `insert into coterie_ledger.entry (run, client, seq, payload) values ($1, $2, $3, $4)
	returning left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), pg_current_wal_insert_lsn()::text,
	(extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint`

// row sends the next row and notes its intention before and its outcome after.
func (w *writer) row(ctx context.Context) (session.Outcome, error) {
	r := record{op: opIntend, at: boottime.Now(), client: w.client, seq: w.seq}
	if err := w.ledger.note(r); err != nil {
		return session.Unknown, err
	}
	w.seq++
	var timeline string
	outcome, state, _ := w.session.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		row := conn.QueryRow(ctx, insert, w.ledger.run, r.client, r.seq, payload(w.ledger.run, r.client, r.seq))
		return row.Scan(&timeline, &r.lsn, &r.server.started)
	})
	r.op, r.at, r.state = opOf[outcome], boottime.Now(), cmp.Or(state, "none")
	if tli, err := strconv.ParseUint(timeline, 16, 32); err == nil {
		r.server.timeline = uint32(tli)
	}
	return outcome, w.ledger.note(r)
}

// payload is what a row must hold: it proves that the row found is the row sent.
func payload(run string, client int, seq int64) []byte {
	h := sha256.Sum256(fmt.Appendf(nil, "%s/%d/%d", run, client, seq))
	return h[:]
}
