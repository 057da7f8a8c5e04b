package backupcmd

import (
	"errors"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// How often another node is asked how far its backup is, and for how long it may not answer.
const (
	everyLook  = time.Second
	lookSilent = time.Minute
)

// makeThere has another replica make the backup, and shows how far it has come until it ends. A failure there is the
// failure of this command.
func (x *work) makeThere(o runOptions, on ag.ReplicaID) (m made, err error) {
	m.Node = string(on)
	ctx := x.c.Context()
	run, err := x.client.BackupRun(ctx, api.BackupRunRequest{On: on, RunRequest: backup.RunRequest{Kind: o.kind, ReplayLimit: o.replayLimit}})
	var said fail.Error
	if err != nil && !errors.As(err, &said) {
		return m, fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("%s, which AUTOMATED_BACKUP_PREFERENCE and BACKUP_PRIORITY name for backups, cannot be asked for one: %w; run coterie backup run there, or --here", on, err)}
	}
	if err != nil {
		return m, err
	}
	cli.Say(x.c, "%s makes the backup; it goes on if this command is ended", on)
	say := x.progress("backup on " + string(on))
	for heard := time.Now(); run.UnderWay(); {
		if err := retry.Sleep(ctx, everyLook); err != nil {
			return m, fmt.Errorf("no longer watched; the backup on %s goes on: coterie backup list shows it", on)
		}
		now, err := x.client.BackupActivity(ctx, on)
		switch {
		case err == nil && now.Run.ID == run.ID:
			heard, run = time.Now(), now.Run
			say(backup.Progress{Percent: run.Percent, Phase: run.Phase})
		case err == nil:
			return m, fail.Unhealthyf("%s does not know of the backup any more: its agent was restarted, and the backup ended with it; run it again", on)
		case time.Since(heard) > lookSilent && ctx.Err() == nil:
			return m, fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("%s has not answered for %v, and how its backup went is not known: %w; coterie backup list shows the backups", on, lookSilent, err)}
		}
	}
	if err := run.Err(); err != nil {
		return m, fail.Error{Kind: fail.KindOf(err), Err: fmt.Errorf("the backup on %s: %w", on, err)}
	}
	m.Run, m.Backup, m.Seconds = true, run.Made, run.Ended.Sub(run.Started).Seconds()
	return m, nil
}
