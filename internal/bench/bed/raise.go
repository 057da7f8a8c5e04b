package bed

import (
	"context"
	"os"

	"github.com/coteriedb/coterie/internal/daemon"
	"github.com/coteriedb/coterie/internal/lab"
)

// RaiseLab is lab.Up with a copy of this program that the servers' user can execute, wherever this one is installed.
func RaiseLab(ctx context.Context, o lab.Options) (*lab.Lab, error) {
	if os.Geteuid() == 0 {
		u, err := daemon.ServerUser()
		if err != nil {
			return nil, err
		}
		if o.Exe, err = daemon.ReachableExe(u.UID); err != nil {
			return nil, err
		}
	}
	return lab.Up(ctx, o)
}
