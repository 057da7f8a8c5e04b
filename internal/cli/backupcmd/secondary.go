package backupcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/standin"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// copySecondary makes a backup of this node's server, which is a secondary's. The primary begins and ends it.
func (x *work) copySecondary(tool backup.Tool, j backup.Job, each func(backup.Progress)) error {
	ctx, cancel := context.WithCancelCause(x.c.Context())
	defer cancel(nil)
	before, err := x.client.BackupStep(ctx, backup.StepRequest{Step: backup.Look})
	if err != nil {
		return fmt.Errorf("ask the primary for the backup: %w", err)
	}
	if err := follow(ctx, x, before.Timeline); err != nil {
		return err
	}
	s, err := standin.Listen(ctx, standin.Config{
		Run: x.layout.Run, User: os.Getuid(), Connect: x.connect, Primary: x.client.BackupStep, ReplayLimit: x.replayLimit,
		Waiting: func(lsn string) {
			each(backup.Progress{Phase: fmt.Sprintf("%s replays to %s, where the backup begins", x.cfg.Node, lsn)})
		},
	}, func(err error) {
		if errors.Is(err, standin.ErrLags) {
			err = x.lags()
		}
		cancel(err)
	})
	if err != nil {
		return err
	}
	served := make(chan struct{})
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(served)
		s.Serve(serving)
	}()
	defer func() { // the window is closed at the primary, and the socket gone
		stop()
		<-served
	}()
	j.Primary = &backup.Standin{Data: x.cfg.PostgreSQL.Data, Socket: s.Dir(), Superuser: x.superuser(), Patience: x.replayLimit}
	return tool.Run(ctx, j, each)
}

func (x *work) connect(ctx context.Context) (*pgx.Conn, error) { return x.session().Connect(ctx, nil) }

// lags is the error of a secondary that does not come to where a backup begins.
func (x *work) lags() error {
	return fail.Unhealthyf("%s has not replayed within %v to where the backup begins, so it lags far behind the primary: see coterie status; coterie backup run --replay-limit gives it longer, and with BACKUP_PRIORITY = 0 backups are made elsewhere", x.cfg.Node, x.replayLimit)
}

// follow waits until this node's server has the timeline in pg_control that the primary writes: the tool looks for it
// there. Tests replace it.
var follow = func(ctx context.Context, x *work, tli uint32) error {
	ctx, cancel := context.WithTimeout(ctx, x.replayLimit)
	defer cancel()
	c, err := x.connect(ctx)
	if err != nil {
		return fail.Unhealthyf("the server of this node: %w; see coterie status", err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	var now int64
	err = retry.Until(ctx, time.Second, func() (bool, error) {
		if err := c.QueryRow(ctx, "SELECT timeline_id FROM pg_control_checkpoint()").Scan(&now); err != nil || uint32(now) == tli {
			return true, err
		}
		_, err := c.Exec(ctx, "CHECKPOINT") // of a secondary: at the last checkpoint that it has replayed
		return false, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return x.lags()
	}
	if err != nil {
		return fail.Unhealthyf("the server of this node: %w; see coterie status", err)
	}
	return nil
}
