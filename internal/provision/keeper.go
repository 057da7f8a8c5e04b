package provision

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

// keeperLimit bounds the wait for the keeper: it ends what is left of a server, and writes that down.
const keeperLimit = time.Minute

// EndKeeper ends the keeper of a node whose agent is stopped, and returns when no process of it is left. A keeper
// outlives its agent for a minute. When it sees the end of a server it puts standby.signal into the data directory,
// which would be a standby's again after it was given back. It is refused while the server runs.
func EndKeeper(ctx context.Context, l config.Layout) error {
	ctx, cancel := context.WithTimeout(ctx, keeperLimit)
	defer cancel()
	for {
		lives, err := keeperLives(l)
		if err != nil || !lives {
			return err
		}
		if err := shutDown(ctx, l); err != nil {
			return err
		}
		if retry.Sleep(ctx, 20*time.Millisecond) != nil {
			return fail.Unhealthyf("the keeper of %[1]s has not ended within %[2]v; see %[1]s/log/keeper.log, and run the command again: it goes on", l.Dir, keeperLimit)
		}
	}
}

// keeperLives reports whether a keeper holds its lock of the node directory.
func keeperLives(l config.Layout) (bool, error) {
	f, err := os.Open(filepath.Join(l.Dir, "keeper", "lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // none has ever run here
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }() // with the lock, if it was free
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// shutDown asks the keeper to end, unless it is still at the end of a server. A keeper that does not answer is about to
// serve, or to end.
func shutDown(ctx context.Context, l config.Layout) error {
	k, st, err := keeper.Dial(ctx, l.KeeperSock(), "")
	if err != nil {
		return nil //nolint:nilerr // its lock tells when it has ended
	}
	_ = k.Close()
	if st.Postmaster != 0 {
		return fail.Unhealthyf("PostgreSQL still runs here (process %[1]d), although no agent does; stop it with kill -INT %[1]d, and run the command again: it goes on", st.Postmaster)
	}
	if st.Ending {
		return nil
	}
	if k, _, err = keeper.Dial(ctx, l.KeeperSock(), "the end of the node"); err != nil {
		return nil //nolint:nilerr // the same
	}
	defer func() { _ = k.Close() }()
	if err := k.Shutdown(ctx); err != nil && !errors.Is(err, keeper.ErrBusy) && !errors.Is(err, keeper.ErrClosed) && ctx.Err() == nil {
		return err
	}
	return nil
}
