package serverlog

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Reader reads the server's log and counts what may be a cancelled wait. All methods may be called from many
// goroutines at once.
//
// The argument for Look. A backend logs the warning by write(2) and returns from it with the file's size grown; only
// then does it send the answer. The caller has received the answer, and calls Look afterwards. The kernel orders the
// grown size before the answer: the backend writes the size before it takes the lock of the socket's queue, and the
// receiver takes that lock to get the answer. So the read in Look, which begins after the call, meets the warning.
// Look returns with everything read that was in the file when it began, or says that the log cannot be relied on.
type Reader struct {
	count     atomic.Uint64          // grows with each suspicion, before anything else tells of it
	weakness  atomic.Pointer[string] // why the log cannot be relied on; nil: it can
	relied    atomic.Uint64          // count when the log could last be relied on again
	confirmed atomic.Uint64          // answers that had to be confirmed because of that
	changed   chan struct{}          // has a value when the settings have to be read again
	suspected func()                 // set before the first call of another method

	mu      sync.Mutex
	file    *os.File // guarded by mu; nil: there is none
	at      int64    // guarded by mu; everything before it was read
	buf     []byte   // guarded by mu: the end of what was read before, then what is being read
	kept    int      // guarded by mu: the length of that end
	reloads uint64   // guarded by mu: how often a change of settings was announced
	foreign string   // guarded by mu: why each output may be a warning or announce a change of settings; empty: messages are understood
	reached []*atomic.Uint64
}

const (
	chunk = 64 << 10
	// maxChunks is how many chunks Look reads before it gives up: its callers are event loops.
	maxChunks = 16
)

// NotReached is what the marks of Reached hold while the log cannot be relied on. No log is that long.
const NotReached = ^uint64(0)

// Texts of PostgreSQL's messages. A message may stand anywhere in the log: a prefix of the line, its language and
// whatever else the administrator can change are not relied on.
var (
	// cancelled is in both warnings of SyncRepWaitForLSN.
	cancelled = []byte("wait for synchronous replication")
	// reloaded is logged by the postmaster before it reads its configuration again.
	reloaded = []byte("received SIGHUP")
)

// overlap is how much of the end of one read is looked at again with the next one.
var overlap = max(len(cancelled), len(reloaded)) - 1

// Reasons that do not come from the settings.
var (
	noLog          = "the keeper that runs is older than this agent, and has no log in memory; it is replaced when the server stops"
	settingsUnread = "the server's settings are being read"
)

// NewReader returns a reader without a log, which cannot be relied on.
func NewReader() *Reader {
	r := &Reader{changed: make(chan struct{}, 1), suspected: func() {}, buf: make([]byte, chunk+overlap)}
	r.weakness.Store(&noLog)
	return r
}

// OnSuspicion has f called at each suspicion: after Count has grown, and before the marks of Reached move. f must not
// call the reader. It is called before the first use of the reader.
func (r *Reader) OnSuspicion(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.suspected = f
}

// Use makes the reader read that file from its present end on. The file must be in memory and must not shrink: a log
// on a disk loses warnings when the disk is full. The reader owns it from now on. The log cannot be relied on until
// Rely is called.
func (r *Reader) Use(f *os.File) error {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return errors.Join(errors.New("the server's log is not a file in memory that cannot shrink"), err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("the server's log: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil {
		_ = r.file.Close()
	}
	r.file, r.at, r.kept = f, st.Size, 0
	r.weaken(settingsUnread)
	r.again()
	return nil
}

// Descriptor returns the descriptor of the log, which stays open as long as the reader; -1 if there is no log.
func (r *Reader) Descriptor() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return -1
	}
	return int(r.file.Fd())
}

// Close closes the log.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return nil
	}
	r.weaken(noLog)
	err := r.file.Close()
	r.file = nil
	return err
}

// ServerStarts must be called before a server is started: the log cannot be relied on until its settings are known.
func (r *Reader) ServerStarts() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reloads++
	if r.file != nil {
		r.weaken(settingsUnread)
		r.again()
	}
}

// weaken marks the log as one that cannot be relied on from now on. The caller holds mu.
func (r *Reader) weaken(why string) {
	if why == settingsUnread {
		r.weakness.Store(&settingsUnread)
	} else {
		r.weakness.Store(&why)
	}
	for _, mark := range r.reached {
		mark.Store(NotReached)
	}
}

// Asked is how far the log was when the settings were asked for.
type Asked struct {
	reloads uint64
	at      int64
}

// Ask must be called before the settings are read that Rely is told.
func (r *Reader) Ask() Asked {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read()
	return Asked{r.reloads, r.at}
}

// Rely applies settings. If the log announced a change of settings since they were asked for, or may have done so,
// nothing is applied, and they are to be read again.
func (r *Reader) Rely(s Settings, asked Asked) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return
	}
	r.read()
	weak, foreign := s.judge()
	if r.reloads != asked.reloads || foreign != "" && r.at != asked.at {
		r.again()
		return
	}
	r.foreign = foreign
	switch now := r.weakness.Load(); {
	case weak != "" && (now == nil || *now != weak):
		r.weaken(weak)
	case weak == "" && now != nil:
		r.suspect() // for the answers of requests that began before
		r.relied.Store(r.count.Load())
		r.weakness.Store(nil)
		r.publish()
	}
}

// again has the settings read again.
func (r *Reader) again() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Changed returns a channel that has a value when the settings have to be read again.
func (r *Reader) Changed() <-chan struct{} { return r.changed }

// Weakness returns why the log cannot be relied on; empty if it can.
func (r *Reader) Weakness() string {
	if w := r.weakness.Load(); w != nil {
		return *w
	}
	return ""
}

// Unread reports whether the log cannot be relied on only until the server's settings are read.
func (r *Reader) Unread() bool { return r.weakness.Load() == &settingsUnread }

// Sound reports whether the log can be relied on.
func (r *Reader) Sound() bool { return r.weakness.Load() == nil }

// Count returns the number of suspicions so far. It reads nothing.
func (r *Reader) Count() uint64 { return r.count.Load() }

// Covers reports whether a request that began at that Count began after the log could last be relied on again. The
// backend of an earlier one may still have the settings of before, and hide the warning of each of its commits.
func (r *Reader) Covers(began uint64) bool { return began >= r.relied.Load() }

// Look reads what was logged, and returns the number of suspicions. If it has grown since a request began, a wait of
// that request's commits may have been cancelled. sound is false while the log cannot be relied on: then any wait may
// have been cancelled. The answer whose fate depends on it must have been received before the call.
func (r *Reader) Look() (count uint64, sound bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read()
	return r.count.Load(), r.weakness.Load() == nil
}

// Reached has mark hold the size up to which the log was read and found harmless, from now on; NotReached while the
// log cannot be relied on.
func (r *Reader) Reached(mark *atomic.Uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reached = append(r.reached, mark)
	mark.Store(NotReached)
	r.publish()
}

// publish sets the marks to how far the log was read. The caller holds mu.
func (r *Reader) publish() {
	if r.weakness.Load() != nil {
		return
	}
	for _, mark := range r.reached {
		mark.Store(uint64(r.at))
	}
}

// suspect counts a suspicion. The caller holds mu.
func (r *Reader) suspect() {
	r.count.Add(1)
	r.suspected()
}

// read reads to the end of the log. The caller holds mu.
func (r *Reader) read() {
	if r.file == nil {
		return
	}
	began := r.at
	for range maxChunks {
		n, err := r.next()
		if n == 0 && err == nil {
			if r.at != began {
				r.publish()
			}
			return
		}
		if err != nil {
			r.weaken("the server's log cannot be read: " + err.Error())
			return
		}
	}
	// The log grew by more than can be read now. Nothing of it is known but its end.
	var st unix.Stat_t
	if err := unix.Fstat(int(r.file.Fd()), &st); err != nil {
		r.weaken("the server's log cannot be read: " + err.Error())
		return
	}
	r.at, r.kept = max(r.at, st.Size), 0
	r.change(settingsUnread)
}

// next reads a chunk and judges it. n is 0 at the end of the log.
func (r *Reader) next() (n int, err error) {
	for {
		n, err = unix.Pread(int(r.file.Fd()), r.buf[r.kept:r.kept+chunk], r.at)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if n <= 0 || err != nil {
		return 0, err
	}
	r.at += int64(n)
	b := r.buf[:r.kept+n]
	switch {
	case r.foreign != "":
		r.change(r.foreign)
	case r.says(b, reloaded):
		r.change(settingsUnread)
	case bytes.IndexByte(b[r.kept:], 0) >= 0: // the keeper has given back what it copied or dropped
		r.change(settingsUnread)
	case r.says(b, cancelled):
		r.suspect()
	}
	r.kept = copy(r.buf, b[max(0, len(b)-overlap):])
	return n, nil
}

// says reports whether the text ends in the part of b that was read now.
func (r *Reader) says(b, text []byte) bool {
	return bytes.Contains(b[max(0, r.kept-len(text)+1):], text)
}

// change handles an output that may announce a change of settings. The caller holds mu.
func (r *Reader) change(why string) {
	r.reloads++
	r.weaken(why)
	r.again()
	r.suspect()
}

// Confirm counts an answer that has to be confirmed because the log cannot be relied on.
func (r *Reader) Confirm() { r.confirmed.Add(1) }

// Confirmed returns how many answers had to be confirmed because the log could not be relied on.
func (r *Reader) Confirmed() uint64 { return r.confirmed.Load() }
