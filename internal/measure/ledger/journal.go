package ledger

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// journal is an append-only file of lines. A line is handed to the kernel before add returns, so the writer's own death
// loses none; sync returns when the disk has it too. Writers that wait at the same time share one fsync.
type journal struct {
	mu  sync.Mutex // guards what follows; held while a line is written, never while waiting for the disk
	f   *os.File
	end int64
	err error // the first failure; everything fails after it

	syncMu sync.Mutex // held during fsync: a goroutine that waits for it usually finds its line synced
	synced int64
}

// openJournal opens or creates path and hands every line in it to each. A last line that was cut short by a crash is
// removed.
func openJournal(path string, each func(line string) error) (*journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	j := &journal{f: f}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: another process has it open: %w", path, err), f.Close())
	}
	if err := j.read(each); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return j, nil
}

func (j *journal) read(each func(line string) error) error {
	r := bufio.NewReader(j.f)
	for n := 1; ; n++ {
		line, err := r.ReadString('\n')
		if errors.Is(err, io.EOF) {
			if line == "" {
				return nil
			}
			return j.f.Truncate(j.end)
		}
		if err != nil {
			return err
		}
		if err := each(strings.TrimSuffix(line, "\n")); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		j.end += int64(len(line))
	}
}

// add appends line and returns what to pass to sync. An error is kept and returned by the next sync.
func (j *journal) add(line string) int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return j.end
	}
	n, err := j.f.WriteString(line + "\n")
	j.end += int64(n)
	j.err = err
	return j.end
}

// sync returns when the file is on disk up to end.
func (j *journal) sync(end int64) error {
	j.syncMu.Lock()
	defer j.syncMu.Unlock()
	j.mu.Lock()
	upTo, err := j.end, j.err
	j.mu.Unlock()
	if err != nil || j.synced >= end {
		return err
	}
	if err := j.f.Sync(); err != nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.err = errors.Join(j.err, err) // after a failed fsync the fate of every earlier write is unknown
		return j.err
	}
	j.synced = upTo
	return nil
}

func (j *journal) close() error { return j.f.Close() }

// op is the first word of a line.
type op string

const (
	opBegin   op = "begin"   // begin AT                                        a Write
	opEnd     op = "end"     // end AT                                          of the same
	opConnect op = "connect" // connect AT CLIENT HOST
	opIntend  op = "send"    // send AT CLIENT SEQ                              written before anything is sent
	opOK      op = "ok"      // ok AT CLIENT SEQ TIMELINE STARTED LSN           counts once it is on disk
	opFail    op = "fail"    // fail AT CLIENT SEQ SQLSTATE
	opUnknown op = "unknown" // unknown AT CLIENT SEQ SQLSTATE
)

var opOf = map[session.Outcome]op{session.OK: opOK, session.Fail: opFail, session.Unknown: opUnknown}

func (o op) outcome() session.Outcome {
	for outcome, word := range opOf {
		if word == o {
			return outcome
		}
	}
	return session.Unknown
}

// record is one line.
type record struct {
	op     op
	at     time.Duration
	client int
	seq    int64
	host   string
	state  string
	server server
	lsn    string
}

func (r record) String() string {
	b := append([]byte(r.op), ' ')
	b = strconv.AppendInt(b, int64(r.at), 10)
	switch r.op {
	case opBegin, opEnd:
	case opConnect:
		b = fmt.Appendf(b, " %d %s", r.client, r.host)
	case opIntend:
		b = fmt.Appendf(b, " %d %d", r.client, r.seq)
	case opOK:
		b = fmt.Appendf(b, " %d %d %d %d %s", r.client, r.seq, r.server.timeline, r.server.started, r.lsn)
	case opFail, opUnknown:
		b = fmt.Appendf(b, " %d %d %s", r.client, r.seq, r.state)
	}
	return string(b)
}

// parseRecord reads what String wrote.
func parseRecord(line string) (record, error) {
	word, rest, _ := strings.Cut(line, " ")
	r := record{op: op(word)}
	var n, want int
	var err error
	switch r.op {
	case opBegin, opEnd:
		want = 1
		n, err = fmt.Sscanf(rest, "%d", &r.at)
	case opConnect:
		want = 3
		n, err = fmt.Sscanf(rest, "%d %d %s", &r.at, &r.client, &r.host)
	case opIntend:
		want = 3
		n, err = fmt.Sscanf(rest, "%d %d %d", &r.at, &r.client, &r.seq)
	case opOK:
		want = 6
		n, err = fmt.Sscanf(rest, "%d %d %d %d %d %s", &r.at, &r.client, &r.seq, &r.server.timeline, &r.server.started, &r.lsn)
	case opFail, opUnknown:
		want = 4
		n, err = fmt.Sscanf(rest, "%d %d %d %s", &r.at, &r.client, &r.seq, &r.state)
	default:
		return r, fmt.Errorf("not a ledger's line: %q", line)
	}
	if err != nil || n != want {
		return r, fmt.Errorf("not a ledger's line: %q", line)
	}
	return r, nil
}

const header = "coterie-ledger 1 run %s boot %d wall %d"

func formatHeader(run string, c clock) string {
	return fmt.Sprintf(header, run, c.boot, c.wall.UnixNano())
}

func parseHeader(line string) (run string, c clock, err error) {
	var wall int64
	if _, err := fmt.Sscanf(line, header, &run, &c.boot, &wall); err != nil {
		return "", c, fmt.Errorf("not a ledger, or not of this version: %q", line)
	}
	c.wall = time.Unix(0, wall)
	return run, c, nil
}
