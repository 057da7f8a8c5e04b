package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/coteriedb/coterie/internal/bench/outage"
	"github.com/coteriedb/coterie/internal/bench/patroni"
	"github.com/coteriedb/coterie/internal/daemon"
)

// withPeers adds Patroni to the measurement twice: with its default settings and with the shortest times that it
// accepts. If it is not installed, its figures have the reason.
func withPeers(ctx context.Context, o *outage.Options, dir, bin string) {
	programs, err := patroni.Find(ctx)
	if err != nil {
		o.PeersWhy = err.Error()
		return
	}
	o.Peers = func(ctx context.Context) ([]outage.Peer, func() error, error) {
		return startPatroni(ctx, programs, dir, bin)
	}
}

func startPatroni(ctx context.Context, programs patroni.Programs, dir, bin string) ([]outage.Peer, func() error, error) {
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		u, err := daemon.ServerUser()
		if err != nil {
			return nil, nil, err
		}
		uid, gid = u.UID, u.GID
	}
	// The last run's directory exists only if that run was killed. Its processes may then still run.
	if err := errors.Join(patroni.Sweep(dir), os.RemoveAll(dir), os.MkdirAll(filepath.Dir(dir), 0o755), os.Mkdir(dir, 0o700)); err != nil { //nolint:gosec // the servers' user passes through
		return nil, nil, err
	}
	c, err := patroni.Start(ctx, patroni.Options{Programs: programs, Dir: dir, Bin: bin, UID: uid, GID: gid})
	end := func() error {
		if c == nil {
			return os.RemoveAll(dir)
		}
		return errors.Join(c.Stop(), os.RemoveAll(dir))
	}
	if err != nil {
		return nil, nil, errors.Join(err, end())
	}
	return []outage.Peer{
		patroniArm{c, "patroni", patroni.Default, programs.Versions}, patroniArm{c, "patroni-floor", patroni.Floor, programs.Versions},
	}, end, nil
}

// patroniArm is the one Patroni cluster with one set of settings.
type patroniArm struct {
	*patroni.Cluster
	name     string
	settings patroni.Settings
	versions map[string]string
}

func (a patroniArm) Name() string { return a.name }

func (a patroniArm) About() map[string]string {
	about := maps.Clone(a.versions)
	about["settings"] = fmt.Sprintf("synchronous_mode, %v", a.settings)
	return about
}

func (a patroniArm) ReadWrite() string { return a.Cluster.ReadWrite(a.settings) }

func (a patroniArm) Start(node string) error { return a.Restart(node) }

// Settle puts the settings in force once every replica is back.
func (a patroniArm) Settle(ctx context.Context) error {
	if err := a.Ready(ctx); err != nil {
		return err
	}
	if err := a.Use(ctx, a.settings); err != nil {
		return err
	}
	return a.Ready(ctx)
}
