package faultfs

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A log that is written page by page, each page several times, reads everywhere as it was written up to what was
// synced. A server's write-ahead log is such a file: walsenders read it right behind the writers. Where the kernel
// drops cached pages because it sees a new modification time, it can fill them again with what stood below before a
// write that is still under way. It takes seconds to meet that: the long run does, the quick one shows that the test
// itself works.
func TestLogReadsAsWritten(t *testing.T) {
	d := newDisk(t)
	const page, size = 8192, 4 << 20
	lasts := time.Second
	if os.Getenv("COTERIE_LONG") != "" {
		lasts = 30 * time.Second
	}
	end := time.Now().Add(lasts)
	name := d.path("log")
	if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	var synced atomic.Int64
	var over atomic.Bool
	var wg sync.WaitGroup
	for r := range 2 {
		wg.Go(func() {
			if err := follow(name, r, &synced, &over); err != nil {
				t.Error(err)
				over.Store(true)
			}
		})
	}
	err := func() error {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		log := make([]byte, size)
		for at := 0; at < size && !over.Load() && time.Now().Before(end); {
			from, to := at, min(at+50+rand.IntN(400), size)
			for ; at < to; at++ {
				log[at] = written(at)
			}
			if _, err := f.WriteAt(log[from/page*page:(to+page-1)/page*page], int64(from/page*page)); err != nil {
				return err
			}
			if err := f.Sync(); err != nil {
				return err
			}
			synced.Store(int64(to))
		}
		return nil
	}()
	over.Store(true)
	wg.Wait()
	if err != nil {
		t.Fatal(err)
	}
}

func written(at int) byte { return byte(1 + at*2654435761>>13%255) }

// follow reads what was synced as soon as it was, and reports what is not as it was written.
func follow(name string, reader int, synced *atomic.Int64, over *atomic.Bool) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 128<<10)
	for at := 0; ; {
		last := over.Load()
		to := min(int(synced.Load()), at+len(b))
		if to == at {
			if last {
				return nil
			}
			continue
		}
		if _, err := f.ReadAt(b[:to-at], int64(at)); err != nil {
			return err
		}
		for i, c := range b[:to-at] {
			if c != written(at+i) {
				return fmt.Errorf("reader %d: byte %#x reads as %d, was written as %d and synced up to %#x", reader, at+i, c, written(at+i), to)
			}
		}
		at = to
	}
}
