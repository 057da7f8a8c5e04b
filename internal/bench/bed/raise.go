package bed

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"strconv"

	"github.com/coteriedb/coterie/internal/daemon"
	"github.com/coteriedb/coterie/internal/lab"
)

// RaiseLab is lab.Up with a program that the servers' user can execute, wherever this one lies.
func RaiseLab(ctx context.Context, o lab.Options) (*lab.Lab, error) {
	if os.Geteuid() == 0 {
		u, err := user.Lookup(daemon.ServerUser)
		if err != nil {
			return nil, fmt.Errorf("there is no user %s, and PostgreSQL refuses to run as root: install PostgreSQL, or run this as an ordinary user", daemon.ServerUser)
		}
		uid, err := strconv.Atoi(u.Uid)
		if err != nil {
			return nil, err
		}
		if o.Exe, err = daemon.ReachableExe(uid); err != nil {
			return nil, err
		}
	}
	return lab.Up(ctx, o)
}
