package ledger

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/measure/session"
)

// Ledger is the client-side account of every row that writers sent and of the server's answer to each. An
// acknowledgement counts once it is on the client's own disk; exactly those rows are asked for afterwards.
//
// Times inside are those of CLOCK_BOOTTIME: one clock for all writers of a machine. Its methods are safe for concurrent
// use.
type Ledger struct {
	run     string // names this ledger's rows in the table
	epoch   clock
	journal *journal

	mu       sync.Mutex
	clients  map[int]*account
	segments []segment // one per Write, in order
	counts   [3]int64  // by outcome
	lastAck  time.Duration
	writing  bool // the last segment is being written by this process
}

// account is what one writer did, in order.
type account struct {
	entries  []entry // entries[i] has sequence number i+1
	connects []time.Duration
}

// entry is one row.
type entry struct {
	sent, done time.Duration
	concluded  bool // false: the writer's process ended before it knew
	outcome    session.Outcome
	state      string // SQLSTATE of what was not acknowledged
	server     server // that acknowledged
	lsn        string // no later than the row's commit
}

// verdict is the outcome. An operation without a conclusion is in doubt.
func (e entry) verdict() session.Outcome {
	if !e.concluded {
		return session.Unknown
	}
	return e.outcome
}

// server is one start of one postmaster on one timeline. A demoted member was restarted, so it is another server.
type server struct {
	timeline uint32
	started  int64 // microseconds since 1970 by its own clock
}

// segment is the time during which one Write ran. end is zero while it runs, or if its process died.
type segment struct{ start, end time.Duration }

// clock relates CLOCK_BOOTTIME to the wall clock, once, so that a step of the latter moves no entry. wall has no
// monotonic reading.
type clock struct {
	boot time.Duration
	wall time.Time
}

func (c clock) time(t time.Duration) time.Time { return c.wall.Add(t - c.boot) }
func (c clock) boottime(t time.Time) time.Duration {
	return c.boot + t.Sub(c.wall)
}

// Open opens the ledger in dir, or begins one. The entries of an earlier process are part of it. Only one process may
// have it open.
func Open(dir string) (*Ledger, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	l := &Ledger{clients: map[int]*account{}}
	j, err := openJournal(filepath.Join(dir, "ledger.log"), l.replay)
	if err != nil {
		return nil, fmt.Errorf("open ledger: %w", err)
	}
	l.journal = j
	if l.run != "" {
		return l, nil
	}
	var id [12]byte
	_, _ = rand.Read(id[:]) // never fails, according to its documentation
	l.run, l.epoch = hex.EncodeToString(id[:]), clock{boottime.Now(), time.Now().Round(0)}
	if err := j.sync(j.add(formatHeader(l.run, l.epoch))); err != nil {
		return nil, errors.Join(fmt.Errorf("begin ledger: %w", err), j.close())
	}
	return l, nil
}

// Close closes the ledger's file. No Write may be running.
func (l *Ledger) Close() error { return l.journal.close() }

// Progress is the ledger so far.
type Progress struct {
	Acknowledged, Failed, Unknown int64
	LastAck                       time.Time // zero before the first
}

// Progress returns what the ledger holds so far; it is cheap.
func (l *Ledger) Progress() Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := Progress{Acknowledged: l.counts[session.OK], Failed: l.counts[session.Fail], Unknown: l.counts[session.Unknown]}
	if l.lastAck != 0 {
		p.LastAck = l.epoch.time(l.lastAck)
	}
	return p
}

// replay takes one line of the journal of an earlier process.
func (l *Ledger) replay(line string) error {
	if l.run == "" {
		var err error
		l.run, l.epoch, err = parseHeader(line)
		return err
	}
	r, err := parseRecord(line)
	if err != nil {
		return err
	}
	return l.apply(r)
}

// apply makes a record part of the ledger. The caller has seen to it that it is on disk where that matters.
func (l *Ledger) apply(r record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch r.op {
	case opBegin:
		l.segments = append(l.segments, segment{start: r.at})
		return nil
	case opEnd:
		if n := len(l.segments); n > 0 {
			l.segments[n-1].end = r.at
		}
		return nil
	case opConnect, opIntend, opOK, opFail, opUnknown:
	}
	a := l.clients[r.client]
	if a == nil {
		a = &account{}
		l.clients[r.client] = a
	}
	switch r.op {
	case opConnect:
		a.connects = append(a.connects, r.at)
	case opIntend:
		if r.seq != int64(len(a.entries))+1 {
			return fmt.Errorf("client %d goes from row %d to %d", r.client, len(a.entries), r.seq)
		}
		a.entries = append(a.entries, entry{sent: r.at})
	case opOK, opFail, opUnknown:
		return l.conclude(a, r)
	case opBegin, opEnd:
	}
	return nil
}

func (l *Ledger) conclude(a *account, r record) error {
	if r.seq < 1 || r.seq > int64(len(a.entries)) || a.entries[r.seq-1].concluded {
		return fmt.Errorf("client %d: row %d ends without having begun", r.client, r.seq)
	}
	e := &a.entries[r.seq-1]
	e.concluded, e.done, e.outcome, e.state, e.server, e.lsn = true, r.at, r.op.outcome(), r.state, r.server, r.lsn
	l.counts[e.outcome]++
	if e.outcome == session.OK {
		l.lastAck = max(l.lastAck, e.done)
	}
	return nil
}

// nextSeq returns the sequence number of a client's next row.
func (l *Ledger) nextSeq(client int) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.clients[client]; a != nil {
		return int64(len(a.entries)) + 1
	}
	return 1
}
