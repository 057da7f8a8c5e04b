package keeper

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/coteriedb/coterie/internal/postgres/keeper/datadir"
)

// loopHere returns a keeper whose loop is the test, with an initialised data directory that nothing runs in. work does
// what it has for the disk.
func loopHere(t *testing.T) (k *keeper, pgdata string, work func()) {
	t.Helper()
	pgdata = t.TempDir()
	must(t, os.WriteFile(filepath.Join(pgdata, "PG_VERSION"), []byte("15\n"), 0o600))
	k = &keeper{log: discard, dir: t.TempDir(), disk: make(chan diskJob, 8)}
	k.server.req.PGData = pgdata
	return k, pgdata, func() {
		for len(k.disk) > 0 {
			j := <-k.disk
			j.then(j.do())
		}
	}
}

// TestSealedWithoutRoomForTheRecord holds that a fence whose record cannot be written, as on a full disk, still leaves
// a data directory that comes up in recovery, and does not call the end of the server clean unseen.
func TestSealedWithoutRoomForTheRecord(t *testing.T) {
	t.Parallel()
	k, pgdata, work := loopHere(t)
	k.dir = filepath.Join(k.dir, "gone")
	told := false
	k.end = &ending{fence: true, exit: &Exit{Clean: true}, waiters: []func(bool){func(bool) { told = true }}}
	k.settle()
	work()
	if !told || k.end != nil {
		t.Errorf("the fence is not complete: told %t, %+v", told, k.end)
	}
	if !datadir.HasStandbySignal(pgdata) {
		t.Error("no standby.signal")
	}
	if k.lastClean {
		t.Error("clean, although pg_control does not say so")
	}
}
