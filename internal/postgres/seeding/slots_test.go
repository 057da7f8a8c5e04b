package seeding

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/seeding/source"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// slots returns an error unless the server has so many slots of seedings.
func (b *bed) slots(t *testing.T, sock string, want int) error {
	t.Helper()
	n, err := b.query(t, sock, "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name LIKE 'cot_seed%'")
	if err == nil && n != fmt.Sprint(want) {
		err = fmt.Errorf("%s slots, not %d", n, want)
	}
	return err
}

// TestSlotOfALostServerGoes ends the session of a window, as a crash of a backend does, while the server takes no
// connection. The slot of the window survives that, and keeps no WAL for ever.
func TestSlotOfALostServerGoes(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	sock := b.source(t)
	s := &station{bed: b, sock: sock}
	var away atomic.Bool
	var refused atomic.Int64
	b.must(t, sock, "SELECT slot_name::text FROM pg_create_physical_replication_slot('cot_seed_n9', true)")
	s.serve(t, source.Config{
		Data: filepath.Join(b.dir, "source"), Leads: func() (ag.Epoch, bool) { return 1, true },
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			if away.Load() {
				refused.Add(1)
				return nil, errors.New("the database system is in recovery mode")
			}
			return connectTo(sock)(ctx)
		},
	})
	waitFor(t, "the slot of an earlier epoch to go", func() error { return b.slots(t, sock, 0) })
	conn, err := s.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	f := wire.NewConn(conn)
	var info wire.Window
	if err := errors.Join(f.WriteJSON(wire.FrameHello, wire.Hello{Version: wire.ProtocolVersion, Member: "n2", Epoch: 1}), f.Expect(wire.FrameWindow, time.Minute, &info)); err != nil {
		t.Fatal(err)
	}
	if err := b.slots(t, sock, 1); err != nil {
		t.Fatal(err)
	}
	away.Store(true)
	b.must(t, sock, "SELECT count(pg_terminate_backend(pid))::text FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
	waitFor(t, "the window to be closed", func() error {
		if refused.Load() == 0 {
			return errors.New("nobody has tried to drop its slot")
		}
		return nil
	})
	away.Store(false)
	waitFor(t, "the slot to go", func() error { return b.slots(t, sock, 0) })
}

// TestSlotOfAFormerPrimaryGoes checks that a secondary keeps no WAL for the seedings of its time as the primary.
func TestSlotOfAFormerPrimaryGoes(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	s := b.station(t, b.source(t))
	_, standby := s.standbyOf(t)
	b.must(t, standby, "SELECT slot_name::text FROM pg_create_physical_replication_slot('cot_seed_n9', true)")
	s.epoch.Store(2)
	waitFor(t, "the slot to go", func() error { return b.slots(t, standby, 0) })
}
