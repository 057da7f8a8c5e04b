package memlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func opened(t *testing.T) (l *Log, path string) {
	t.Helper()
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "postgres.log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	l.CopyTo(f)
	return l, path
}

// Messages arrive in the file without being asked for, in order, and all of them are there when the log is closed.
func TestCopies(t *testing.T) {
	t.Parallel()
	l, path := opened(t)
	if _, err := l.Output().WriteString("first\n"); err != nil {
		t.Fatal(err)
	}
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if b, _ := os.ReadFile(path); string(b) == "first\n" {
			break
		}
		if time.Now().After(limit) {
			t.Fatal("nothing was copied")
		}
	}
	var want bytes.Buffer
	want.WriteString("first\n")
	for i := range 200_000 {
		line := fmt.Sprintf("line %d of the server\n", i)
		want.WriteString(line)
		if _, err := l.Output().WriteString(line); err != nil {
			t.Fatal(err)
		}
	}
	l.Flush()
	var st unix.Stat_t
	if err := unix.Fstat(int(l.Output().Fd()), &st); err != nil || st.Size != int64(want.Len()) || st.Blocks*512 > behind+freeEvery+2*room {
		t.Errorf("%d bytes of memory for a log of %d, %v", st.Blocks*512, st.Size, err)
	}
	l.Close()
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, want.Bytes()) {
		t.Errorf("%d bytes instead of %d, %v", len(b), want.Len(), err)
	}
}

// A program that opens the server's standard error anew must not truncate it, nor may anybody else: readers compare
// sizes.
func TestNeverShrinks(t *testing.T) {
	t.Parallel()
	l, _ := opened(t)
	defer l.Close()
	_, _ = l.Output().WriteString("one")
	if f, err := os.OpenFile(name(l.Output()), os.O_WRONLY|os.O_TRUNC, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("%v, %v", f, err)
	}
	if err := l.Output().Truncate(0); !errors.Is(err, unix.EPERM) {
		t.Error(err)
	}
	r, err := l.Reader()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if st, err := r.Stat(); err != nil || st.Size() != 3 {
		t.Errorf("%v, %v", st, err)
	}
}

// A disk that takes nothing costs a bounded amount of memory, and the copy tells what it misses.
func TestDiskDoesNotKeepUp(t *testing.T) {
	t.Parallel()
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	fifo := filepath.Join(dir, "slow")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	slow, err := os.OpenFile(fifo, os.O_RDWR, 0) // nobody reads: a write of more than it holds waits
	if err != nil {
		t.Fatal(err)
	}
	l.CopyTo(slow)
	piece := bytes.Repeat([]byte("x"), 1<<20)
	for range 2 * Bound >> 20 {
		if _, err := l.Output().Write(piece); err != nil {
			t.Fatal(err)
		}
		l.bound()
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(l.Output().Fd()), &st); err != nil || st.Blocks*512 > Bound+2*room {
		t.Errorf("%d bytes of memory are used, %v", st.Blocks*512, err)
	}
	rest := make(chan string, 1)
	go func() {
		var all strings.Builder
		b := make([]byte, 1<<20)
		for !strings.Contains(all.String(), "the end") {
			n, err := slow.Read(b)
			if err != nil {
				break
			}
			all.Write(b[:n])
		}
		rest <- all.String()
	}()
	_, _ = l.Output().WriteString("the end")
	l.Flush()
	if s := <-rest; !strings.Contains(s, "bytes of the server's log are missing here") || len(s) > Bound+1<<20 {
		t.Errorf("%d bytes were copied, and nothing is said to be missing", len(s))
	}
	l.Close()
}

// Memory is given back while a server logs faster than the copying comes to an end.
func TestFreesWhileItCopies(t *testing.T) {
	t.Parallel()
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	copied, disk, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l.CopyTo(disk)
	piece, got := bytes.Repeat([]byte("x"), 64<<10), make([]byte, 64<<10)
	say := func() {
		if _, err := l.Output().Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // more than the pipe holds: the copier has a piece to copy whenever it looks
		say()
	}
	for range 256 {
		say()
		if _, err := io.ReadFull(copied, got); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(l.Output().Fd()), &st); err != nil || st.Blocks*512 > behind+freeEvery+2*room {
		t.Errorf("%d bytes of memory are used, %v", st.Blocks*512, err)
	}
	go func() { _, _ = io.Copy(io.Discard, copied) }()
	l.Close()
	_ = copied.Close()
}
