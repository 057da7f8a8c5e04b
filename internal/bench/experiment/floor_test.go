package experiment

import (
	"context"
	"sync"
	"testing"
	"time"
)

// wire is a group of three whose links and disks take known times.
type wire struct {
	Group
	Links
	trips, disks map[string]time.Duration
	all          sync.WaitGroup // of the disks that sync
}

func (w *wire) Members(context.Context) ([]string, error) { return []string{"a", "b", "c"}, nil }
func (w *wire) Primary(context.Context) (string, error)   { return "b", nil }

func (w *wire) RoundTrip(_ context.Context, _, to string) (time.Duration, error) {
	return w.trips[to], nil
}

func (w *wire) SyncTime(_ context.Context, member string, _ int) (time.Duration, error) {
	w.all.Done()
	w.all.Wait() // blocks for ever if they sync in turn
	return w.disks[member], nil
}

// TestFloor: the floor is that of the nearest secondary with its disk, and all of them sync at the same time.
func TestFloor(t *testing.T) {
	const ms = time.Millisecond
	w := &wire{trips: map[string]time.Duration{"a": 5 * ms, "c": 2 * ms}, disks: map[string]time.Duration{"a": 1 * ms, "c": 3 * ms}}
	w.all.Add(2)
	f, err := (&Bed{Group: w, Links: w}).Floor(t.Context())
	if err != nil || f != (Floor{Member: "c", RoundTrip: 2 * ms, Disk: 3 * ms}) {
		t.Errorf("%+v, %v", f, err)
	}
}
