package seeding

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// deadSource answers hellos with a window of one small file, then pings, but no chunks.
func deadSource(conn net.Conn, info wire.Window) {
	f := wire.NewConn(conn)
	var h wire.Hello
	if f.Expect(wire.FrameHello, time.Hour, &h) != nil || f.WriteJSON(wire.FrameWindow, info) != nil {
		return
	}
	list, err := json.Marshal([]wire.File{{Name: "global", Dir: true}, {Name: "PG_VERSION", Size: 3}})
	if err != nil || h.Data || errors.Join(f.Write(wire.FrameFiles, s2.Encode(nil, list)), f.Write(wire.FrameListed), f.Flush()) != nil {
		return
	}
	for {
		kind, _, err := f.Read(time.Hour)
		if err != nil || errors.Join(f.Write(kind), f.Flush()) != nil {
			return
		}
	}
}

// TestDeadSecondaryIsGivenUp lets a secondary die before the copy from it begins and while it is made. After half a
// minute the attempt ends, so that the next can be made from the primary. A dead primary is waited for.
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
				serve := func(info wire.Window) net.Conn {
					here, there := net.Pipe()
					served.Go(func() { defer there.Close(); deadSource(there, info) })
					return here
				}
				info := wire.Window{ID: "w", SystemID: "7", Major: 15, Page: 8192, Start: 1, Key: pagesum.NewKey()}
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
						kept.Anchor = &wire.Anchor{Since: 1, After: 2}
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

// TestListsThatDoNotEnd checks that a source's list of files takes neither memory nor time without end.
func TestListsThatDoNotEnd(t *testing.T) {
	t.Parallel()
	long, err := json.Marshal([]wire.File{{Name: strings.Repeat("x", 1<<20)}})
	if err != nil {
		t.Fatal(err)
	}
	for name, part := range map[string][]byte{"long names": s2.Encode(nil, long), "empty parts": s2.Encode(nil, []byte("[]"))} {
		here, there := net.Pipe()
		var served sync.WaitGroup
		served.Go(func() {
			f := wire.NewConn(there)
			for range 1000 {
				if errors.Join(f.Write(wire.FrameFiles, part), f.Flush()) != nil {
					return
				}
			}
			_ = f.WriteJSON(wire.FrameListed, nil)
		})
		if files, err := receiveList(wire.NewConn(here)); err == nil || !strings.Contains(err.Error(), "an empty part, a name") {
			t.Errorf("%s: %d files, error %v", name, len(files), err)
		}
		_ = here.Close()
		served.Wait()
		_ = there.Close()
	}
}

// TestLostWriteIsKept checks that a failure of the target's disk does not go under beside the end of a window: the
// kernel tells of it once, and the next window would find what the disk lacks in the page cache.
func TestLostWriteIsKept(t *testing.T) {
	t.Parallel()
	gone, state := wire.Refuse(wire.CodeGone, "the backup window has ended"), t.TempDir()
	lost := errors.Join(gone, fmt.Errorf("%w: EIO", tree.ErrUnwritten))
	if !windowIsGone(gone) || windowIsGone(lost) {
		t.Error("another window is taken for a remedy, or is not")
	}
	if err := tree.WriteUnfinished(state, tree.Unfinished{Target: "/pgdata"}); err != nil {
		t.Fatal(err)
	}
	s := &seeder{o: Options{StateDir: state}}
	for _, tt := range []struct {
		err  error
		want bool
	}{{nil, false}, {gone, false}, {lost, true}} {
		err := s.doubt(tt.err)
		if m, _ := tree.ReadUnfinished(state); m.Unwritten != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("after %v the mark is %+v, error %v", tt.err, m, err)
		}
	}
}
