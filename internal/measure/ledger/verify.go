package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// Verdict is the state of the ledger's rows on one server.
type Verdict struct {
	Acknowledged   int64 // rows whose commit a server acknowledged
	Lost           int64 // of these, not on this server, or not as sent
	LostInside     int64 // of these, with a later row of the same writer present: not a clean tail
	Unknown        int64 // rows in doubt: allowed to be present or not
	UnknownPresent int64
	Failed         int64 // rows that a server rolled back, by its own answer
	FailedPresent  int64 // of these, present all the same
	Duplicates     int64 // rows present more than once
	Unrecorded     int64 // rows present that the ledger does not know, or knows in doubt with other contents
	LostIDs        []string
	LastLost       time.Time // when the latest of the lost rows was acknowledged; zero if none is lost
	TwoServers     bool      // two servers acknowledged rows at the same time

	lastLost time.Duration
}

// lostIDs bounds Verdict.LostIDs.
const lostIDs = 20

// Sound reports whether the server kept every promise: no row lost, none present that was rolled back, none present
// twice, and one server at a time.
func (v Verdict) Sound() bool { return v.Lost == 0 && v.SoundSince(time.Time{}) }

// SoundSince is Sound where an operator accepted before at that rows are lost, and only such rows are: what was
// acknowledged later is there, and no promise but that is broken by what was acknowledged before.
func (v Verdict) SoundSince(at time.Time) bool {
	return (v.Lost == 0 || v.LastLost.Before(at)) && v.FailedPresent == 0 && v.Duplicates == 0 && v.Unrecorded == 0 && !v.TwoServers
}

// String is the verdict in a line.
func (v Verdict) String() string {
	s := fmt.Sprintf("acknowledged %d   lost %d   unknown %d (%d present, %d absent)   duplicates %d",
		v.Acknowledged, v.Lost, v.Unknown, v.UnknownPresent, v.Unknown-v.UnknownPresent, v.Duplicates)
	if v.FailedPresent > 0 {
		s += fmt.Sprintf("   rolled back but present %d", v.FailedPresent)
	}
	if v.Unrecorded > 0 {
		s += fmt.Sprintf("   never sent but present %d", v.Unrecorded)
	}
	if v.TwoServers {
		s += "   TWO SERVERS ACKNOWLEDGED AT ONCE"
	}
	return s
}

// rowKey names a row.
type rowKey struct {
	client int
	seq    int64
}

// Verify compares the ledger, row by row, with what the server at dsn has: a primary, or a replica at its own position.
// A server without the ledger's table has lost everything.
func (l *Ledger) Verify(ctx context.Context, dsn string) (Verdict, error) {
	found, err := l.read(ctx, dsn)
	if err != nil {
		return Verdict{}, fmt.Errorf("verify ledger: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var v Verdict
	numbers := make([]int, 0, len(l.clients))
	for n := range l.clients {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		v.account(n, l.clients[n].entries, found)
	}
	for _, f := range found {
		if f.rows > 1 {
			v.Duplicates++
		}
		if !f.known {
			v.Unrecorded += int64(f.rows)
		}
	}
	v.TwoServers = twoServers(l.clients)
	if v.Lost > 0 {
		v.LastLost = l.epoch.time(v.lastLost)
	}
	return v, nil
}

// sighting is the rows that a server has under one key.
type sighting struct {
	rows, good int  // good rows hold what was sent
	known      bool // the ledger sent it
}

// account judges the rows of one writer.
func (v *Verdict) account(client int, entries []entry, found map[rowKey]*sighting) {
	last := 0 // sequence number of the last row present
	for i := range entries {
		if f := found[rowKey{client, int64(i) + 1}]; f != nil && f.good > 0 {
			last = i + 1
		}
	}
	for i, e := range entries {
		f := found[rowKey{client, int64(i) + 1}]
		if f != nil {
			f.known = true
		}
		present := f != nil && f.good > 0
		switch e.verdict() {
		case session.OK:
			v.Acknowledged++
			if !present {
				v.LostInside += count(i+1 < last)
				v.lose(rowKey{client, int64(i) + 1}, e, f != nil)
			}
		case session.Fail:
			v.Failed++
			v.FailedPresent += count(f != nil)
		case session.Unknown:
			v.Unknown++
			v.UnknownPresent += count(present)
			v.Unrecorded += count(f != nil && !present)
		}
	}
}

// lose counts a row that is not present; altered: its key is, with other contents.
func (v *Verdict) lose(row rowKey, e entry, altered bool) {
	v.Lost++
	v.lastLost = max(v.lastLost, e.done)
	if len(v.LostIDs) == lostIDs {
		return
	}
	id := fmt.Sprintf("%d/%d (timeline %d, %s)", row.client, row.seq, e.server.timeline, e.lsn)
	if altered {
		id += " altered"
	}
	v.LostIDs = append(v.LostIDs, id)
}

func count(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// readTries is how often a replica may cancel the reading because replay had to continue.
const readTries = 5

// read returns what the server has of this ledger.
func (l *Ledger) read(ctx context.Context, dsn string) (map[rowKey]*sighting, error) {
	conn, err := session.Open(ctx, dsn, appName)
	if err != nil {
		return nil, err
	}
	defer closeConn(conn)
	for try := 1; ; try++ {
		found, err := l.readOnce(ctx, conn)
		var pg *pgconn.PgError
		switch {
		case err == nil:
			return found, nil
		case errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "3F000"): // no such table, no such schema
			return nil, nil //nolint:nilnil // an empty map is the right reading
		case try == readTries || pg == nil || pg.Code != "40001":
			return nil, err
		}
		select {
		case <-time.After(time.Duration(try) * 200 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func (l *Ledger) readOnce(ctx context.Context, conn *pgx.Conn) (map[rowKey]*sighting, error) {
	rows, err := conn.Query(ctx, `select client, seq, payload from coterie_ledger.entry where run = $1`, l.run)
	if err != nil {
		return nil, err
	}
	found := map[rowKey]*sighting{}
	var key rowKey
	var got []byte
	_, err = pgx.ForEachRow(rows, []any{&key.client, &key.seq, &got}, func() error {
		f := found[key]
		if f == nil {
			f = &sighting{}
			found[key] = f
		}
		f.rows++
		if bytes.Equal(got, payload(l.run, key.client, key.seq)) {
			f.good++
		}
		return nil
	})
	return found, err
}

// twoServers looks for proof that two servers acknowledged rows at the same time. An answer may be on its way for long,
// so only rows that were sent after another's answer had come prove anything about order.
func twoServers(clients map[int]*account) bool {
	type window struct{ firstDone, lastSent time.Duration }
	seen := map[server]*window{}
	for _, a := range clients {
		for _, e := range a.entries {
			if e.verdict() != session.OK || e.server.timeline == 0 {
				continue
			}
			w := seen[e.server]
			if w == nil {
				w = &window{firstDone: e.done}
				seen[e.server] = w
			}
			w.firstDone, w.lastSent = min(w.firstDone, e.done), max(w.lastSent, e.sent)
		}
	}
	for p, a := range seen {
		for q, b := range seen {
			if p == q {
				continue
			}
			if q.timeline > p.timeline && b.firstDone < a.lastSent {
				return true // the old timeline answered something asked after the new one had answered
			}
			if a.firstDone < b.lastSent && b.firstDone < a.lastSent {
				return true // they took turns
			}
		}
	}
	return false
}
