package majors

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

// The bounds of the end of a keeper, and of the server that it has.
const (
	keeperEnds = 3 * time.Minute
	keptEnds   = time.Minute
)

// endKeeper ends the keeper that a killed agent has left behind, and a secondary's server with it, in order. A keeper
// that sees the end of a server puts standby.signal into the data directory, which pg_upgrade must not find.
func endKeeper(ctx context.Context, l config.Layout) error {
	ctx, cancel := context.WithTimeout(ctx, keeperEnds)
	defer cancel()
	for {
		if lives, err := keeperLives(l); err != nil || !lives {
			return err
		}
		if k, st, err := keeper.Dial(ctx, l.KeeperSock(), "major upgrade"); err == nil { // else it is about to serve, or to end
			if st.Postmaster != 0 {
				_, _ = k.Stop(ctx, "fast", keptEnds) // the next look tells
			}
			_ = k.Shutdown(ctx)
			_ = k.Close()
		}
		if retry.Sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("the keeper of %s has not ended within %v; see log/keeper.log there", l.Dir, keeperEnds)
		}
	}
}

// keeperLives reports whether a keeper holds its lock of the node directory.
func keeperLives(l config.Layout) (bool, error) {
	f, err := os.Open(filepath.Join(l.Dir, "keeper", "lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
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
