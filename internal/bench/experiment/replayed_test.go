package experiment

import (
	"context"
	"strings"
	"testing"
	"time"
)

// byConsole is a group of two whose console shows how far the second replica has replayed.
type byConsole struct {
	byListener
	primary, second string
}

func (g *byConsole) ReadWrite() string { return g.primary }

func (g *byConsole) Behind(ctx context.Context, lsn string) ([]string, error) {
	there, err := ask[bool](ctx, g.second, "select pg_last_wal_replay_lsn() >= '"+lsn+"'::pg_lsn")
	if err != nil || there {
		return nil, err
	}
	return []string{"n2 (at its place)"}, nil
}

// waitsForReaders: on a group that is known only by its listeners, the measurement waits until the readable secondaries
// have replayed the loaded data. The error names a secondary that does not.
func waitsForReaders(t *testing.T, b *Bed) {
	group := &Bed{Group: &byConsole{primary: b.A, second: b.B}, Patience: time.Second}
	execute(t, b.B, "select pg_wal_replay_pause()")
	defer func() { execute(t, b.B, "select pg_wal_replay_resume()") }()
	if err := until(t.Context(), time.Minute, "replay to stop", func(ctx context.Context) (bool, error) {
		state, err := text(ctx, b.B, "select pg_get_wal_replay_pause_state()")
		return state == "paused", err
	}); err != nil {
		t.Fatal(err)
	}
	o := RoutingOptions{Rows: 7000}
	err := group.routingData(t.Context(), &o)
	if err == nil || !strings.Contains(err.Error(), "waited 1s for the readable secondaries") || !strings.Contains(err.Error(), "behind are n2 (at its place)") {
		t.Errorf("replay is paused: %v", err)
	}
	group.Patience = time.Minute
	did := make(chan error, 1)
	go func() { did <- group.customers(t.Context(), 9000) }()
	if err := until(t.Context(), time.Minute, "the load", func(ctx context.Context) (bool, error) {
		n, err := number(ctx, b.A, "select count(*)::float8 from coterie_bench.customer")
		return n >= 9000, err
	}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-did:
		t.Errorf("it did not wait: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	execute(t, b.B, "select pg_wal_replay_resume()")
	if err := <-did; err != nil {
		t.Error(err)
	}
	if n, err := number(t.Context(), b.B, "select count(*)::float8 from coterie_bench.customer"); n < 9000 || err != nil {
		t.Errorf("the replica has %v rows: %v", n, err)
	}
}
