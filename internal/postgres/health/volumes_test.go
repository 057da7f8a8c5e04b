package health

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/lib/storage"
)

// TestVolumes holds that a mirror that loses a side is reported and logged, at once and once, and makes no node ill. It
// holds that directories on one volume are told of once, and that the answers of a look that was ended are not used.
func TestVolumes(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	found := 0
	m := New(Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Found: func() { found++ }})
	state := storage.Whole
	m.look = func(_ context.Context, dirs ...string) (out []storage.Volume) {
		for _, d := range dirs {
			out = append(out, storage.Volume{Dir: d, Kind: storage.MD, Name: "/dev/md0", Mirrored: true, State: state, Devices: []storage.Device{{Name: "/dev/sdb", State: map[storage.State]string{storage.Whole: "ok", storage.Degraded: "failed"}[state]}}})
		}
		return out
	}
	look := func(want storage.State, calls int, says ...string) {
		t.Helper()
		log.Reset()
		for range 2 { // the second look has no news
			if err := m.lookAtVolumes(t.Context(), []string{"/srv/data", "/srv/wal"}); err != nil {
				t.Fatal(err)
			}
		}
		r := m.judge(Target{}, 0)
		if len(r.Storage) != 1 || r.Storage[0].State != want || r.Storage[0].Dir != "/srv/data" || r.Level != 0 || found != calls {
			t.Errorf("%+v after %d calls, want %s after %d", r, found, want, calls)
		}
		for _, s := range says {
			if strings.Count(log.String(), s) != 1 {
				t.Errorf("the log has %q, want %q once", log.String(), s)
			}
		}
	}
	look(storage.Whole, 1)
	state = storage.Degraded
	look(storage.Degraded, 2, "level=WARN", "/dev/sdb is failed; the other side serves")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	state = storage.Unknown
	if err := m.lookAtVolumes(ended, []string{"/srv/data"}); err == nil || m.stood(0)[0].State != storage.Degraded {
		t.Errorf("a look that was ended: %v, %+v", err, m.stood(0))
	}
	state = storage.Whole
	look(storage.Whole, 3, "level=INFO", "was=degraded")
}

// TestALookThatHangs holds that the answer of before is not shown as the present one while a look does not end: the
// report says since when nothing is known, always the same, until a look has ended.
func TestALookThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs, ends := false, make(chan struct{})
		m := New(Config{Logger: slog.New(slog.DiscardHandler), Found: func() {}})
		m.places = map[string]*place{"/srv/data": {}}
		m.look = func(context.Context, ...string) []storage.Volume {
			if hangs {
				<-ends
			}
			return []storage.Volume{{Dir: "/srv/data", Kind: storage.MD, Name: "/dev/md0", Mirrored: true, State: storage.Degraded}}
		}
		attempt := func() {
			m.begin(t.Context(), m.under, volumesLimit, func(ctx context.Context) error { return m.lookAtVolumes(ctx, []string{"/srv/data"}) })
			synctest.Wait()
		}
		const began = time.Hour
		says := func(after time.Duration, state storage.State, why string) {
			t.Helper()
			got := m.judge(Target{}, began+after).Storage
			if len(got) != 1 || got[0].State != state || !strings.Contains(got[0].Why, why) || why == "" && got[0].Why != "" {
				t.Errorf("after %v: %+v", after, got)
			}
		}
		m.under.due(began, 0)
		attempt()
		says(0, storage.Degraded, "")
		hangs = true
		m.under.due(began, 0)
		attempt()
		says(volumesStale-1, storage.Degraded, "")
		since := time.Now().Add(-volumesStale).UTC().Format(time.RFC3339)
		says(volumesStale, storage.Unknown, "no look at it has ended since "+since)
		says(time.Hour, storage.Unknown, since+"; a tool hangs in the kernel, or the device does; it was degraded before")
		close(ends)
		synctest.Wait()
		hangs = false
		m.under.due(began+time.Hour, 0)
		attempt()
		says(2*time.Hour, storage.Degraded, "")
		m = New(m.cfg)
		m.places = map[string]*place{"/srv/data": {}}
		m.under.due(began, 0)
		says(time.Hour, storage.Unknown, "no look at it has ended since")
	})
}
