package rawconn

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// pairs returns both ends of a connection of each kind, the first one taken.
func pairs(t *testing.T, f func(t *testing.T, c *Conn, other net.Conn)) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if network == "unix" {
				address = filepath.Join(t.TempDir(), "s")
			}
			l, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			other, err := net.Dial(network, l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = other.Close() }()
			accepted, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			c, err := Take(accepted)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			f(t, c, other)
		})
	}
}

func TestBytesArriveInBothDirections(t *testing.T) {
	pairs(t, func(t *testing.T, c *Conn, other net.Conn) {
		want := bytes.Repeat([]byte("what is longer than any buffer of a socket "), 200_000)
		var wg sync.WaitGroup
		send := func(w net.Conn) { wg.Go(func() { _, _ = w.Write(want) }) }
		receive := func(r net.Conn) {
			wg.Go(func() {
				got := make([]byte, len(want))
				if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%T: other bytes, %v", r, err)
				}
			})
		}
		send(c)
		send(other)
		time.Sleep(20 * time.Millisecond) // both writers wait for room by now, most likely
		receive(c)
		receive(other)
		wg.Wait()
	})
}

func TestReaderWakesFromEachKindOfWait(t *testing.T) {
	pairs(t, func(t *testing.T, c *Conn, other net.Conn) {
		b := make([]byte, 1)
		for i := range 6 {
			time.AfterFunc([]time.Duration{0, blockFor / 5, 3 * blockFor}[i%3], func() { _, _ = other.Write([]byte{byte(i)}) })
			if n, err := c.Read(b); n != 1 || err != nil || b[0] != byte(i) {
				t.Fatalf("byte %d: %d bytes, %v, %v", i, n, b, err)
			}
		}
		_ = other.Close()
		if n, err := c.Read(b); n != 0 || !errors.Is(err, io.EOF) {
			t.Fatalf("at the end: %d bytes, %v", n, err)
		}
	})
}

// TestCloseEndsWaits closes while a goroutine reads, in a blocking read and in a long wait, and while one writes to a
// peer that does not read.
func TestCloseEndsWaits(t *testing.T) {
	for _, after := range []time.Duration{blockFor / 5, 4 * blockFor} {
		pairs(t, func(t *testing.T, c *Conn, other net.Conn) {
			_, _ = other.Write([]byte("x"))
			if _, err := c.Read(make([]byte, 1)); err != nil { // from here on it blocks in read(2)
				t.Fatal(err)
			}
			ended := make(chan error, 2)
			go func() {
				_, err := c.Read(make([]byte, 1))
				ended <- err
			}()
			go func() {
				_, err := c.Write(make([]byte, 32<<20))
				ended <- err
			}()
			time.Sleep(after)
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			for range 2 {
				if err := <-ended; !errors.Is(err, net.ErrClosed) {
					t.Errorf("of what was under way: %v", err)
				}
			}
			if err := c.Close(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("closed again: %v", err)
			}
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("read after close: %v", err)
			}
			if err := c.Control(func(uintptr) {}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("control after close: %v", err)
			}
		})
	}
}

func TestDeadlines(t *testing.T) {
	pairs(t, func(t *testing.T, c *Conn, other net.Conn) {
		_ = c.SetDeadline(time.Now().Add(20 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
		if _, err := c.Write(make([]byte, 32<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("write: %v", err)
		}
		_ = c.SetDeadline(time.Time{})
		ended := make(chan error, 1)
		go func() {
			_, err := c.Read(make([]byte, 1))
			ended <- err
		}()
		time.Sleep(3 * blockFor)
		_ = c.SetReadDeadline(time.Unix(1, 0)) // of a read that waits already
		if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
		_ = c.SetReadDeadline(time.Time{})
		_, _ = other.Write([]byte("x"))
		if n, err := c.Read(make([]byte, 8)); n != 1 || err != nil {
			t.Errorf("afterwards: %d bytes, %v", n, err)
		}
	})
}
