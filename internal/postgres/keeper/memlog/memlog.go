package memlog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Bound is how many bytes wait for the disk at most. Older bytes are dropped, and the copy says so.
	Bound = 64 << 20
	// room is how many bytes of memory are reserved ahead of the end, so that a message finds room on a machine that
	// is short of memory.
	room = 1 << 20
	// freeEvery is how many copied bytes are given back to the system at once, and behind is how many are kept for an
	// agent that reads late.
	freeEvery = 256 << 10
	behind    = 1 << 20
	// pause is the shortest time between two rounds of copying: a server that logs a lot does not wake the copier for
	// each line.
	pause = 20 * time.Millisecond
	// idle is how often the log is looked at where the kernel does not tell that it has grown.
	idle = time.Second
	page = 4 << 10
)

// Log is the file in memory. It only grows; its beginning is given back to the system as it is copied.
type Log struct {
	file   *os.File // as the server has it: every write goes to the end
	notify *os.File // tells that it has grown; nil: it is looked at
	wake   chan struct{}
	done   chan struct{}
	ended  sync.WaitGroup

	copying sync.Mutex // held by a round of copying
	piece   [64 << 10]byte

	mu      sync.Mutex
	to      io.WriteCloser // guarded by mu; nil: nothing is copied
	from    int64          // guarded by mu: where copying goes on
	freed   int64          // guarded by mu: everything before it was given back
	dropped int64          // guarded by mu: bytes that were not copied, and that the copy does not tell of yet
}

// New makes an empty log.
func New() (*Log, error) {
	fd, err := unix.MemfdCreate("coterie-server-log", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("coterie-server-log", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("a log in memory: %w", err)
	}
	made := os.NewFile(uintptr(fd), "server log")
	defer func() { _ = made.Close() }()
	// The agent compares sizes. A program of the server that opens /dev/stderr anew would truncate the log.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		return nil, fmt.Errorf("a log in memory: %w", err)
	}
	// Opened by its name: the kernel announces no changes of a file that was made without one.
	file, err := os.OpenFile(name(made), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil, fmt.Errorf("a log in memory: %w", err)
	}
	l := &Log{file: file, wake: make(chan struct{}, 1), done: make(chan struct{})}
	l.reserve(0)
	l.watch()
	l.ended.Go(l.run)
	return l, nil
}

// name returns a name under which an open file can be opened again.
func name(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// watch opens notify, if the kernel tells of changes.
func (l *Log) watch() {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return
	}
	if _, err := unix.InotifyAddWatch(fd, name(l.file), unix.IN_MODIFY); err != nil {
		_ = unix.Close(fd)
		return
	}
	l.notify = os.NewFile(uintptr(fd), "changes of the server log")
	l.ended.Go(func() {
		b := make([]byte, page)
		for {
			if _, err := l.notify.Read(b); err != nil {
				return
			}
			l.Wake()
		}
	})
}

// Output returns what a server gets as its standard output and error.
func (l *Log) Output() *os.File { return l.file }

// Reader opens the log for reading. The caller closes it.
func (l *Log) Reader() (*os.File, error) { return os.Open(name(l.file)) }

// CopyTo has everything copied to f from now on, and closes the file to which it was copied before. The log owns f.
func (l *Log) CopyTo(f io.WriteCloser) {
	l.Flush() // what the last server said goes to its own file
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to != nil {
		_ = l.to.Close()
	}
	l.to = f
}

// Wake has the log copied soon.
func (l *Log) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Close copies the rest and ends the copying.
func (l *Log) Close() {
	close(l.done)
	if l.notify != nil {
		_ = l.notify.Close()
	}
	l.ended.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to != nil {
		_ = l.to.Close()
	}
	_ = l.file.Close()
}

// run copies until the log is closed. A second goroutine keeps the bound while the disk does not answer.
func (l *Log) run() {
	l.ended.Go(func() {
		t := time.NewTicker(idle)
		defer t.Stop()
		for {
			select {
			case <-l.done:
				return
			case <-t.C:
				l.bound()
				l.Wake()
			}
		}
	})
	for {
		select {
		case <-l.done:
			l.Flush()
			return
		case <-l.wake:
		}
		l.Flush()
		select {
		case <-l.done:
		case <-time.After(pause):
		}
	}
}

// Flush copies what is in the log now. It waits for the disk.
func (l *Log) Flush() {
	l.copying.Lock()
	defer l.copying.Unlock()
	for l.step() {
	}
}

// step copies a piece and reports whether there may be more. Bytes that the disk does not take are dropped. Memory is
// given back with each step, since a server may log for as long as the copying takes.
func (l *Log) step() bool {
	l.mu.Lock()
	to, from, dropped := l.to, l.from, l.dropped
	l.mu.Unlock()
	if to == nil {
		return false
	}
	n, _ := l.file.ReadAt(l.piece[:], from)
	if n == 0 {
		return false
	}
	var err error
	if dropped > 0 {
		_, err = fmt.Fprintf(to, "[%d bytes of the server's log are missing here: the disk did not take them in time]\n", dropped)
	}
	if err == nil {
		_, err = to.Write(l.piece[:n])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.dropped -= dropped
	} else {
		l.dropped += int64(n)
	}
	l.from = max(l.from, from+int64(n))
	if end := l.from - behind; end-l.freed >= freeEvery {
		l.freeTo(end)
	}
	return true
}

// bound drops the oldest of what waits for the disk when it is too much.
func (l *Log) bound() {
	st, err := l.file.Stat()
	if err != nil {
		return
	}
	l.reserve(st.Size())
	l.mu.Lock()
	defer l.mu.Unlock()
	if keep := st.Size() - Bound/2; st.Size()-l.from > Bound {
		l.dropped += keep - l.from
		l.from = keep
		l.freeTo(keep)
	}
}

// reserve takes memory ahead of the end.
func (l *Log) reserve(end int64) {
	_ = unix.Fallocate(int(l.file.Fd()), unix.FALLOC_FL_KEEP_SIZE, end&^(page-1), room)
}

// freeTo gives the memory before that offset back. The caller holds mu.
func (l *Log) freeTo(end int64) {
	end &^= page - 1
	if end > l.freed && unix.Fallocate(int(l.file.Fd()), unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, l.freed, end-l.freed) == nil {
		l.freed = end
	}
}
