package health

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

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
	if err := m.lookAtVolumes(ended, []string{"/srv/data"}); err == nil || m.stood()[0].State != storage.Degraded {
		t.Errorf("a look that was ended: %v, %+v", err, m.stood())
	}
	state = storage.Whole
	look(storage.Whole, 3, "level=INFO", "was=degraded")
}
