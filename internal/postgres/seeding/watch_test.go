package seeding

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/s2"
)

// TestEstimateWhileTheSourceIsGone shows no time left while nothing can come, and the right one once it comes again.
func TestEstimateWhileTheSourceIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(nil, &chooser{})
		w.start(100<<20, 1)
		second := func() Progress { // of a copy that makes 1 MiB in each
			since := w.listens()
			time.Sleep(time.Second)
			w.onNet(since)
			w.settled(1<<20, 0)
			return w.snapshot()
		}
		for range 20 {
			second()
		}
		expect := func(p Progress, left time.Duration, waits string) {
			t.Helper()
			if d := p.ETA() - left; d > 5*time.Second || d < -5*time.Second || !strings.HasPrefix(p.Waiting, waits) || (p.Waiting == "") != (waits == "") {
				t.Errorf("%v left instead of %v, waiting %q", p.ETA(), left, p.Waiting)
			}
		}
		expect(w.snapshot(), 80*time.Second, "")
		w.cut("connection refused")
		for range 60 {
			time.Sleep(time.Second)
			expect(w.snapshot(), 0, "waiting for a source: connection refused")
		}
		expect(second(), 79*time.Second, "")
		since := w.listens() // and now without a word
		time.Sleep(quiet)
		expect(w.snapshot(), 95*time.Second, "") // a fifth more: of what it can tell, it has not moved for a fifth
		for range 60 {
			time.Sleep(time.Second)
			expect(w.snapshot(), 0, "waiting for a source: nothing has come for")
		}
		w.onNet(since)
		expect(second(), 97*time.Second, "")
	})
}

// TestEstimateAfterWhatIsThere goes on with a copy of which a half is there, found a hundred times as fast as the other half comes: a few
// seconds after that the estimate is of the other half.
func TestEstimateAfterWhatIsThere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(nil, &chooser{})
		w.start(2000<<20, 1)
		for range 40 {
			time.Sleep(showEvery)
			w.settled(25<<20, 25<<20)
			w.snapshot()
		}
		for i := range 400 {
			time.Sleep(showEvery)
			w.settled(1<<18, 0)
			left, told := 1000*time.Second-time.Duration(i)*showEvery, w.snapshot().ETA()
			if i > 30 && (told < left*9/10 || told > left*11/10) {
				t.Fatalf("%v left, told %v", left, told)
			}
		}
	})
}

// deadSource answers hellos with a window of one small file, then pings, but no chunks.
func deadSource(conn net.Conn, info windowInfo) {
	f := newFramed(conn)
	var h hello
	if f.expect(frameHello, time.Hour, &h) != nil || f.writeJSON(frameWindow, info) != nil {
		return
	}
	list, err := json.Marshal([]file{{Name: "global", Dir: true}, {Name: "PG_VERSION", Size: 3}})
	if err != nil || h.Data || errors.Join(f.write(frameFiles, s2.Encode(nil, list)), f.write(frameListed), f.flush()) != nil {
		return
	}
	for {
		kind, _, err := f.read(time.Hour)
		if err != nil || errors.Join(f.write(kind), f.flush()) != nil {
			return
		}
	}
}

// TestDeadSecondaryIsGivenUp lets a secondary die before the copy from it begins and while it is made: after half a minute the attempt
// ends, so that the next can be made from the primary. A primary is waited for.
func TestDeadSecondaryIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dials    int // that are answered
		anchored bool
		after    time.Duration
	}{
		"secondary, from the beginning": {0, true, sourceGone},
		"secondary, half way":           {1, true, sourceGone},
		"primary":                       {1, false, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				var served sync.WaitGroup
				serve := func(info windowInfo) net.Conn {
					here, there := net.Pipe()
					served.Go(func() { defer there.Close(); deadSource(there, info) })
					return here
				}
				info := windowInfo{ID: "w", SystemID: "7", Major: 15, Page: 8192, Start: 1, Key: newPageKey()}
				dials := 0
				var mu sync.Mutex
				o := Options{
					Member: "n2", Epoch: 1, Target: filepath.Join(dir, "pgdata"), StateDir: filepath.Join(dir, "state"),
					Dial: func(context.Context) (net.Conn, error) {
						mu.Lock()
						defer mu.Unlock()
						if dials++; dials > c.dials {
							return nil, errors.New("connection refused")
						}
						return serve(info), nil
					},
				}
				if c.anchored {
					o.Anchor = func(context.Context) (net.Conn, error) {
						kept := info
						kept.Anchor = &anchor{Since: 1, After: 2}
						return serve(kept), nil
					}
				}
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, errors.New("an hour has passed"))
				defer cancel()
				began := time.Now()
				_, err := Run(ctx, o)
				took := time.Since(began)
				if err == nil || took < c.after || took > c.after+10*time.Second {
					t.Errorf("it ended after %v: %v", took, err)
				}
				if c.anchored && !strings.Contains(err.Error(), "has not answered for 30s: connect to the source: connection refused") {
					t.Errorf("error %v", err)
				}
				served.Wait()
			})
		})
	}
}
