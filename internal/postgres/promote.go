package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/postgres/session"
)

// ErrTimeline means that a promotion did not, or could not, take the requested timeline id. If the server has left
// recovery it must be fenced: its timeline belongs to no member.
var ErrTimeline = errors.New("timeline id not available")

// maxSkip bounds the ids that one promotion may skip. A larger gap means a corrupt record, not a history of failed
// promotions.
const maxSkip = 100_000

// Promote ends recovery on exactly the timeline tli and returns how far WAL is flushed then: at or just beyond the end
// of recovery. A copy that has flushed that much has the whole change of timeline (docs/internals/safety.md,
// "Timelines" and "Promotion").
//
// PostgreSQL takes the id after the newest timeline of which it has a history file. So an empty history file is
// created for every skipped id. They stay, because secondaries ask for the file of every id below the newest.
//
// After an error other than ErrTimeline the server may or may not be promoted, now or later: fence, then look.
// Promoting again to the timeline that the server already writes succeeds.
//
// The numbers of transactions are for questions about commits (docs/adr/0111-commits-in-doubt.md). Each bound holds
// whenever it was read on its side of the end of recovery. Kept is not known of a server that was promoted before.
func (i *Instance) Promote(ctx context.Context, tli ag.Timeline, budget time.Duration) (endOfRecovery ag.LSN, xids ag.Xids, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, budget, fmt.Errorf("not out of recovery after %v", budget))
	defer cancel()
	o, err := i.Observe(ctx)
	if err != nil {
		return 0, ag.Xids{}, fmt.Errorf("promote: %w", err)
	}
	if o.InRecovery {
		if err := i.skipTo(o.Timeline, tli); err != nil {
			return 0, ag.Xids{}, fmt.Errorf("promote to timeline %d: %w", tli, err)
		}
		fault.Point("promote.skipped") // the timeline ids in between are taken; PostgreSQL is not promoted
		if xids.Kept, err = i.leaveRecovery(ctx, o); err != nil {
			return 0, ag.Xids{}, fmt.Errorf("promote to timeline %d: %w", tli, err)
		}
	}
	fault.Point("promote.left") // PostgreSQL has left recovery; its timeline is not checked
	xids.Lost = i.nextXid(ctx)
	p, err := i.identify(ctx)
	if err != nil {
		return 0, ag.Xids{}, fmt.Errorf("promote to timeline %d: %w", tli, err)
	}
	if p.Timeline != tli {
		return 0, ag.Xids{}, fmt.Errorf("promote to timeline %d: the server writes timeline %d: %w", tli, p.Timeline, ErrTimeline)
	}
	if _, err := i.History(ctx, tli); err != nil {
		return 0, ag.Xids{}, fmt.Errorf("promote to timeline %d: %w: %w", tli, err, ErrTimeline)
	}
	return p.LSN, xids, nil
}

// skipTo makes tli the id that PostgreSQL will choose next. Marks below it that are there stay: after many promotions
// that were given up, making all of them takes longer than a lease.
func (i *Instance) skipTo(current, tli ag.Timeline) error {
	if tli <= current || tli-current > maxSkip {
		return fmt.Errorf("the server replays timeline %d: %w", current, ErrTimeline)
	}
	if err := i.removeTrailingSkips(tli); err != nil {
		return err
	}
	files, err := i.historyFiles()
	if err != nil {
		return err
	}
	for known := range files {
		if known >= tli {
			return fmt.Errorf("timeline %d has a history file here already: %w", known, ErrTimeline)
		}
	}
	made := false
	for id := current + 1; id < tli; id++ {
		if _, ok := files[id]; ok {
			continue
		}
		made = true
		if err := createEmpty(i.historyPath(id)); err != nil {
			return fmt.Errorf("mark timeline %d as skipped: %w", id, err)
		}
	}
	if !made {
		return nil
	}
	return syncPath(i.path("pg_wal"))
}

// createEmpty leaves it to the caller to flush the directory, which is all that there is of an empty file.
func createEmpty(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// catchUpStill is for how long a server that waits for WAL has replayed nothing until it is taken for having replayed
// all that it can. One that cannot read what it has waits again and again, with a look at that in between.
const catchUpStill = time.Second

// CatchUp does what may take long before a promotion to the timeline tli. It marks the timelines that are skipped, and
// waits until the server in recovery has replayed what it has: up to end, and whatever it finds behind that. Records
// that the server cannot read are not waited for, and a pause is ended. PostgreSQL replays all of that before it leaves
// recovery. That may take hours, and one record minutes. A server that is killed meanwhile begins again at its last
// restartpoint, so this is waited for BEFORE the server gets a deadline.
func (i *Instance) CatchUp(ctx context.Context, end ag.Position, tli ag.Timeline) error {
	marked := tli <= end.Timeline+1
	var last ag.LSN
	began := time.Now()
	for still := began; ; {
		r, err := i.replay(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("wait for replay up to %s: %w", end, err)
		case !r.recovery:
			return nil
		case !marked:
			if err := i.skipTo(end.Timeline, tli); err != nil {
				return fmt.Errorf("promote to timeline %d: %w", tli, err)
			}
			marked = true
		case r.at != last:
			last, still = r.at, time.Now()
		}
		if r.waits && (r.at >= end.LSN || time.Since(still) >= catchUpStill) {
			return nil
		}
		if err := retry.Sleep(ctx, catchUpPause(time.Since(began))); err != nil {
			return fmt.Errorf("replayed up to %s of %s: %w", r.at, end, err)
		}
	}
}

// catchUpPause returns the pause between two looks of CatchUp, which grows with the time that it has waited. So a long
// replay is not disturbed, and the wait is a twentieth longer at most.
func catchUpPause(waited time.Duration) time.Duration {
	return min(max(pollInterval, waited/20), time.Second)
}

// replaying is where the replay of a server is.
type replaying struct {
	recovery bool
	at       ag.LSN
	waits    bool // for WAL that it does not have
}

const replayQuery = `
SELECT r.yes, pg_last_wal_replay_lsn()::text, CASE WHEN r.yes THEN pg_is_wal_replay_paused() ELSE false END,
       EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'startup' AND (wait_event LIKE 'RecoveryWal%' OR wait_event = 'RecoveryRetrieveRetryInterval'))
FROM (SELECT pg_is_in_recovery() AS yes) r`

// replay looks where the replay of the server is, and has one that is paused go on.
func (i *Instance) replay(ctx context.Context) (r replaying, err error) {
	ctx, cancel := context.WithTimeout(ctx, session.Limit)
	defer cancel()
	err = i.main.Do(ctx, func(c *pgx.Conn) error {
		r = replaying{}
		var paused bool
		if err := c.QueryRow(ctx, replayQuery).Scan(&r.recovery, lsn(&r.at), &paused, &r.waits); err != nil || !paused {
			return err
		}
		r.waits = false
		_, err := c.Exec(ctx, "SELECT pg_wal_replay_resume()")
		return err
	})
	return r, err
}

// leaveRecovery requests promotion and waits for its end. It does not use the wait of pg_promote, which polls ten times
// a second. It leaves the session to others between two looks: the server is observed meanwhile. kept is the number
// after the last transaction that was replayed before. The server replays what it has before it is promoted, so waiting
// for that first takes no time. Its promotion would end a pause, too.
func (i *Instance) leaveRecovery(ctx context.Context, o Observation) (kept uint64, err error) {
	err = i.main.Do(ctx, func(c *pgx.Conn) error {
		sent := false
		if o.ReplayPaused {
			_, _ = c.Exec(ctx, "SELECT pg_wal_replay_resume()") // fails once it is being promoted
		}
		if err := awaitReplay(ctx, c, o.Whole.LSN); err != nil {
			return err
		}
		if c.QueryRow(ctx, keptQuery).Scan(&kept) != nil {
			kept = 0 // a promotion does not fail for it
		}
		if err := c.QueryRow(ctx, "SELECT pg_promote(false)").Scan(&sent); err != nil {
			return err
		}
		if !sent {
			return errors.New("the postmaster could not be told")
		}
		return nil
	})
	for recovery := true; err == nil; {
		err = i.main.Do(ctx, func(c *pgx.Conn) error { return c.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&recovery) })
		if err == nil && !recovery {
			return kept, nil
		}
		if err == nil {
			err = retry.Sleep(ctx, pollInterval)
		}
	}
	return kept, err
}

// awaitReplay waits until the server has replayed its WAL up to end, or replayBudget is over.
func awaitReplay(ctx context.Context, c *pgx.Conn, end ag.LSN) error {
	for until := time.Now().Add(replayBudget); time.Now().Before(until); {
		var at ag.LSN
		if err := c.QueryRow(ctx, "SELECT pg_last_wal_replay_lsn()").Scan(lsn(&at)); err != nil {
			return err
		}
		if at >= end {
			return nil
		}
		if err := retry.Sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
	return nil
}

// replayBudget bounds the wait for the replay of what a server has, before it is promoted. Without it the number of its
// last transaction is too low, which is not wrong.
const replayBudget = 100 * time.Millisecond

// xidQuery returns the number after that of the last transaction that has ended. A number that is in use may be higher.
// keptQuery returns it of a server in recovery only. Its snapshot is older than its look at that.
const (
	xidQuery  = "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint"
	keptQuery = xidQuery + " * pg_catalog.pg_is_in_recovery()::int"
)

// nextXid returns the number after that of the last transaction that has ended; 0: the server does not say.
func (i *Instance) nextXid(ctx context.Context) (next uint64) {
	if i.main.Do(ctx, func(c *pgx.Conn) error { return c.QueryRow(ctx, xidQuery).Scan(&next) }) != nil {
		return 0
	}
	return next
}

// ErrNotWhole means that the data directory does not hold a whole copy: one that was being made or rewound.
var ErrNotWhole = errors.New("the data directory does not hold a whole copy")

// EndRecovery makes the stopped copy one that starts as a primary by itself, in no group: it replays all WAL that is
// here, and then begins a timeline of its own. A copy that was a primary when it was stopped keeps its timeline. No
// server runs meanwhile: PostgreSQL does it in single-user mode, which nobody can connect to. standby.signal is away
// afterwards. It may take as long as the WAL is; after an interruption of any kind it can be repeated.
func (i *Instance) EndRecovery(ctx context.Context) error {
	if i.Interrupted() || exists(i.path("backup_label")) {
		return ErrNotWhole
	}
	c, err := i.Control(ctx)
	if err != nil {
		return err
	}
	if err := i.removeTrailingSkips(0); err != nil { // the server would follow the skipped id
		return err
	}
	standby := c.State == "shut down in recovery" || c.State == "in archive recovery"
	if standby { // with both signals PostgreSQL would be a standby, and with this one alone it starts only as it does here
		if err := durable.Replace(i.path("recovery.signal"), nil, 0o600); err != nil {
			return fmt.Errorf("create recovery.signal: %w", err)
		}
	}
	fault.Point("leave.signalled") // recovery.signal is there; the copy still starts as a standby
	if err := durable.Remove(i.path("standby.signal")); err != nil {
		return err
	}
	fault.Point("leave.unsignalled") // standby.signal is away; recovery has not ended
	if c.State == "shut down" {
		return durable.Remove(i.path("recovery.signal"))
	}
	if err := i.replayAll(ctx, standby, i.formerLimits(c)); err != nil {
		return errors.Join(fmt.Errorf("end recovery: %w", err), i.standbyAgain())
	}
	if c, err = i.Control(ctx); err != nil {
		return err
	}
	if c.State != "shut down" {
		return fmt.Errorf("end recovery: the copy is %q afterwards, not \"shut down\"", c.State)
	}
	return durable.Remove(i.path("recovery.signal"))
}

// standbyAgain gives a copy its signals of before. recovery.signal goes last: with neither file the copy would start as
// a primary. One that stays would keep the copy from starting once somebody has promoted it.
func (i *Instance) standbyAgain() error {
	if err := i.createStandbySignal(); err != nil {
		return err
	}
	return durable.Remove(i.path("recovery.signal"))
}

// replayAll runs PostgreSQL in single-user mode until it has recovered and shut down.
func (i *Instance) replayAll(ctx context.Context, standby bool, limits map[string]int) error {
	args := []string{"--single", "-D", i.Config().PGData}
	for _, set := range []string{
		"config_file=" + i.configFile(), "data_directory=" + i.Config().PGData, "hba_file=" + i.Config().HBAFile, "ident_file=" + i.identFile(),
		"primary_conninfo=", "primary_slot_name=", "archive_mode=off", "synchronous_standby_names=", "hot_standby=off",
		"recovery_target=", "recovery_target_timeline=latest", "recovery_min_apply_delay=0",
		"max_slot_wal_keep_size=-1",
	} {
		args = append(args, "-c", set)
	}
	args = append(args, limitArgs(limits)...)
	restore := "restore_command="
	if standby { // archive recovery needs one; there is no archive
		restore += "exit 1"
	}
	cmd := exec.CommandContext(ctx, i.Binary(), append(args, "-c", restore, "template1")...)
	cmd.Env = programs.ToolEnv()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := programs.RunBound(cmd) // standard input is /dev/null: it recovers and leaves
	out := said.Bytes()
	i.keepLog("recovery", out)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, programs.LastText(out))
	}
	return nil
}
