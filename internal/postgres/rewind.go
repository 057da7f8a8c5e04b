package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/postgres/pgfiles"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/postgres/session"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// RewindOptions configures a rewind.
type RewindOptions struct {
	SourceConninfo string       // of the primary, as a superuser; no password in it
	ForkDir        string       // where the diverged tail is kept first (KeepFork); "" if the caller has kept it
	Progress       func(string) // called with each line pg_rewind prints; may be nil
}

// ErrRewind means that this copy cannot be rewound: the caller seeds it again.
var ErrRewind = errors.New("rewind not possible")

// ErrInterrupted means that a rewind of the copy was begun and not finished, so that it must not be started.
var ErrInterrupted = errors.New("a rewind of this copy is unfinished; rewind it again, or seed it again")

// rewindMark is the content of StateDir/rewinding.json. While the file exists the server must not be started.
type rewindMark struct {
	Phase    string    `json:"phase"`
	AutoConf *string   `json:"auto_conf"` // the node's own postgresql.auto.conf, which pg_rewind replaces by the source's
	Since    time.Time `json:"since"`
	// Limits are what the copy's server had. pg_rewind replaces that, too, and the WAL that is replayed first may be
	// older than the source's values.
	Limits map[string]int `json:"limits,omitempty"`
}

// The phases of a rewind. Only the middle one, in which pg_rewind writes, cannot be repeated.
const (
	phaseRecover = "recover"
	phaseRewind  = "rewind"
	phaseFinish  = "finish"
)

func (i *Instance) rewindMarkFile() string {
	return filepath.Join(i.Config().StateDir, "rewinding.json")
}

// Interrupted reports whether a rewind was begun and not finished. The server must not be started then.
func (i *Instance) Interrupted() bool { return exists(i.rewindMarkFile()) }

// ForgetRewind removes the mark of an unfinished rewind. The caller must have replaced the copy since.
func (i *Instance) ForgetRewind() error { return durable.Remove(i.rewindMarkFile()) }

// Rewind returns the stopped, diverged copy to the history of the source with pg_rewind (docs/internals/postgresql.md,
// "Rewind"). A server that was not shut down cleanly is recovered first. From its mark to its end the copy cannot be
// started (see Interrupted). Afterwards it is a standby that needs the source's WAL.
//
// Errors after which only a reseed helps wrap ErrRewind.
func (i *Instance) Rewind(ctx context.Context, o RewindOptions) error {
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	mark, err := i.readRewindMark()
	if err != nil {
		return fmt.Errorf("rewind: %w", err)
	}
	if mark == nil || mark.Phase == phaseRecover {
		if mark, err = i.beginRewind(ctx, o, mark); err != nil {
			return fmt.Errorf("rewind: %w", err)
		}
	} else if mark.Phase == phaseRewind {
		return fmt.Errorf("rewind: pg_rewind was interrupted at %s and may have left a mixture of two histories: %w", mark.Since.Format(time.RFC3339), ErrRewind)
	}
	if mark.Phase == phaseRecover {
		if err := i.runRewind(ctx, o, mark); err != nil {
			return fmt.Errorf("rewind: %w", err)
		}
	}
	if err := i.finishRewind(mark); err != nil {
		return fmt.Errorf("rewind: %w", err)
	}
	return nil
}

// beginRewind checks what can be checked, keeps the tail, and sets the mark. It leaves a cleanly shut down copy at its
// own end.
func (i *Instance) beginRewind(ctx context.Context, o RewindOptions, mark *rewindMark) (*rewindMark, error) {
	c, err := i.Control(ctx)
	if err != nil {
		return nil, err
	}
	if !i.Config().Install.Rewind {
		return nil, fmt.Errorf("%s has no pg_rewind (some distributions package it apart): %w", i.Config().Install.BinDir, ErrRewind)
	}
	if !c.DataChecksums && !c.WalLogHints {
		return nil, fmt.Errorf("the copy has neither data checksums nor wal_log_hints: %w", ErrRewind)
	}
	fork, err := i.prepareSource(ctx, o.SourceConninfo, c.SystemID)
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	if o.ForkDir != "" {
		if err := i.KeepFork(ctx, fork, o.ForkDir); err != nil {
			return nil, err
		}
	}
	if mark == nil {
		mark = &rewindMark{Phase: phaseRecover, Since: time.Now().UTC(), Limits: i.formerLimits(c)}
		own, err := os.ReadFile(i.autoConf())
		if err == nil {
			s := string(own)
			mark.AutoConf = &s
		} else if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if err := i.writeRewindMark(mark); err != nil {
			return nil, err
		}
	}
	fault.Point("rewind.begun") // the rewind's mark is on disk; the copy is as it was
	if c.Clean() {
		return mark, nil
	}
	o.Progress("recovering the copy up to its own end")
	return mark, i.recover(ctx, c)
}

// sharedSegment reports whether other timelines have a file of the segment that the primary writes.
const sharedSegment = `SELECT count(*) > 1 FROM pg_ls_waldir()
	WHERE name ~ '^[0-9A-F]{24}$' AND substr(name, 9) = substr(pg_walfile_name(pg_current_wal_insert_lsn()), 9)`

// prepareSource checks that the source is a primary of the same cluster, makes its timeline appear in pg_control, and
// returns where this copy's history leaves the source's. Before 16, pg_rewind reads the timeline from the last
// checkpoint, and a newly promoted server has not made one on its timeline.
//
// pg_rewind copies the source's whole pg_wal. Each timeline has a file of its own for every segment it has a part
// in, and a checkpoint removes older segments only. So the source begins a new segment if timelines share the
// present one: else each failover would lengthen the next rewind by a segment, until the segment is full.
func (i *Instance) prepareSource(ctx context.Context, conninfo, systemID string) (fork ag.Position, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // the checkpoint
	defer cancel()
	config, err := pgx.ParseConfig(conninfo)
	if err != nil {
		return fork, err
	}
	config.RuntimeParams = i.server.Params()
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fork, err
	}
	defer session.Close(conn)
	var id string
	var recovery bool
	if err := conn.QueryRow(ctx, "SELECT system_identifier::text, pg_is_in_recovery() FROM pg_control_system()").Scan(&id, &recovery); err != nil {
		return fork, err
	}
	if id != systemID {
		return fork, fmt.Errorf("its system identifier is %s, this copy's is %s: they are different clusters: %w", id, systemID, ErrRewind)
	}
	if recovery {
		return fork, errors.New("it is in recovery: rewind from the primary")
	}
	var shared bool
	if err := conn.QueryRow(ctx, sharedSegment).Scan(&shared); err != nil {
		return fork, err
	}
	if shared {
		if _, err := conn.Exec(ctx, "SELECT pg_switch_wal()"); err != nil {
			return fork, err
		}
	}
	if _, err := conn.Exec(ctx, "CHECKPOINT"); err != nil {
		return fork, err
	}
	return i.forkFrom(ctx, conn)
}

// forkFrom finds the last position that this copy and the source have in common.
func (i *Instance) forkFrom(ctx context.Context, source *pgx.Conn) (fork ag.Position, err error) {
	var tli ag.Timeline
	if err := source.QueryRow(ctx, "SELECT timeline_id FROM pg_control_checkpoint()").Scan(&tli); err != nil {
		return fork, err
	}
	var entries []ag.TimelineEntry
	if tli > 1 {
		var content string
		if err := source.QueryRow(ctx, "SELECT pg_read_file('pg_wal/' || $1)", fmt.Sprintf("%08X.history", uint32(tli))).Scan(&content); err != nil {
			return fork, err
		}
		if entries, err = pgfiles.ParseHistory(content, tli); err != nil {
			return fork, err
		}
	}
	c, err := i.Control(ctx)
	if err != nil {
		return fork, err
	}
	own, err := i.lineage(ctx, max(c.Timeline, c.MinRecoveryTLI))
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: %w", err, ErrRewind)
	}
	if err != nil {
		return fork, err
	}
	fork, ok := pgfiles.CommonAncestor(own, pgfiles.NewLineage(tli, entries))
	if !ok {
		return fork, fmt.Errorf("the histories have no timeline in common: %w", ErrRewind)
	}
	return fork, nil
}

// recover performs crash recovery in single-user mode. pg_rewind would do the same, but before 15 without the
// configuration file of a Debian cluster, and it would remove WAL that it needs afterwards.
func (i *Instance) recover(ctx context.Context, c pgfiles.Control) error {
	if err := durable.Remove(i.path("standby.signal")); err != nil { // single-user mode refuses to be a standby
		return err
	}
	fault.Point("rewind.nosignal") // standby.signal is away for the recovery; recovery has not begun
	args := []string{
		"--single", "-D", i.Config().PGData,
		"-c", "config_file=" + i.configFile(), "-c", "data_directory=" + i.Config().PGData,
		"-c", "hba_file=" + i.Config().HBAFile, "-c", "ident_file=" + i.identFile(),
		"-c", "restore_command=", "-c", "archive_mode=off", "-c", "synchronous_standby_names=",
		"-c", "wal_keep_size=1TB", "-c", "max_slot_wal_keep_size=-1",
	}
	args = append(args, limitArgs(i.formerLimits(c))...)
	cmd := exec.CommandContext(ctx, i.Binary(), append(args, "template1")...)
	cmd.Env = programs.ToolEnv()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := programs.RunBound(cmd) // standard input is /dev/null: it recovers and leaves
	out := said.Bytes()
	i.keepLog("recovery", out)
	fault.Point("rewind.recovered") // the copy is recovered to its own end; standby.signal is away
	if serr := i.createStandbySignal(); serr != nil {
		return serr
	}
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("recover the copy: %w", context.Cause(ctx))
		}
		return fmt.Errorf("recover the copy: %w: %s: %w", err, programs.LastText(out), ErrRewind)
	}
	return nil
}

func (i *Instance) runRewind(ctx context.Context, o RewindOptions, mark *rewindMark) error {
	mark.Phase, mark.Since = phaseRewind, time.Now().UTC()
	if err := i.writeRewindMark(mark); err != nil {
		return err
	}
	fault.Point("rewind.phase") // the mark says that pg_rewind runs; it does not yet
	args := []string{"--target-pgdata", i.Config().PGData, "--source-server", o.SourceConninfo, "--progress"}
	if i.Config().Install.Major >= 15 {
		args = append(args, "--config-file", i.configFile())
	}
	out, err := programs.RunLines(ctx, i.bin("pg_rewind"), args, o.Progress)
	i.keepLog("rewind", out)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("pg_rewind: %w: %s: %w", err, programs.LastText(out), ErrRewind)
	}
	if err == nil && bytes.Contains(out, []byte("no rewind required")) {
		// pg_rewind compares the last checkpoints: a copy whose WAL merely continues beyond the fork is left diverged.
		err = fmt.Errorf("pg_rewind finds nothing to rewind, since this copy went on without a checkpoint after the fork (no rewind required): %w", ErrRewind)
	}
	if err != nil {
		return err
	}
	fault.Point("rewind.ran") // pg_rewind has ended; the mark says that it runs
	mark.Phase = phaseFinish
	return i.writeRewindMark(mark)
}

// finishRewind restores this node's own files and removes the mark.
func (i *Instance) finishRewind(mark *rewindMark) error {
	fault.Point("rewind.finish") // the mark says that only this node's files are missing; they are
	own := settings.AutoConfHeader
	if mark.AutoConf != nil {
		own = *mark.AutoConf
	}
	edited, err := settings.EditAutoConf(own, nil)
	if err != nil {
		return err
	}
	if err := durable.Replace(i.autoConf(), []byte(edited), 0o600); err != nil {
		return err
	}
	if err := i.rememberLimits(larger(i.rememberedLimits(), mark.Limits)); err != nil {
		return err
	}
	fault.Point("rewind.conf") // this node's settings are back; standby.signal is not
	if err := i.createStandbySignal(); err != nil {
		return err
	}
	fault.Point("rewind.signal") // the copy is a standby again; the rewind's mark is still there
	return i.ForgetRewind()
}

func (i *Instance) readRewindMark() (*rewindMark, error) {
	b, err := os.ReadFile(i.rewindMarkFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var m rewindMark
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", i.rewindMarkFile(), err, ErrRewind)
	}
	return &m, nil
}

func (i *Instance) writeRewindMark(m *rewindMark) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return durable.Replace(i.rewindMarkFile(), b, 0o600)
}

// keepLog appends a tool's output to a file of LogDir, best-effort.
func (i *Instance) keepLog(name string, out []byte) {
	if i.Config().LogDir == "" {
		return
	}
	f, err := os.OpenFile(filepath.Join(i.Config().LogDir, name+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		_, err = fmt.Fprintf(f, "--- %s\n%s\n", time.Now().UTC().Format(time.RFC3339), out)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		i.log.Warn("output of a tool not kept", "tool", name, "error", err)
	}
}

// ForkSummary is the summary.json of a kept tail.
type ForkSummary struct {
	SystemID string      `json:"system_identifier"`
	State    string      `json:"cluster_state"`
	Fork     ag.Position `json:"fork"`
	End      ag.Position `json:"end"`
	Time     time.Time   `json:"time"`
	Files    []string    `json:"files"`
	Bytes    int64       `json:"bytes"`
}

// KeepFork copies the diverged tail of a stopped copy, its WAL beyond the position from, into dir before a rewind or
// reseed destroys it (S5). The tail is the WAL segments from the fork to the end, all timeline history files,
// pg_control and, written last, summary.json. A directory with a summary is complete and not changed. After an error
// nothing is left of it: parts of a tail would keep the disk full.
func (i *Instance) KeepFork(ctx context.Context, from ag.Position, dir string) error {
	if exists(filepath.Join(dir, "summary.json")) {
		return nil
	}
	if err := i.keepFork(ctx, from, dir); err != nil {
		return fmt.Errorf("keep the diverged tail in %s: %w", dir, errors.Join(err, os.RemoveAll(dir)))
	}
	return nil
}

func (i *Instance) keepFork(ctx context.Context, from ag.Position, dir string) error {
	c, err := i.Control(ctx)
	if err != nil {
		return err
	}
	s := ForkSummary{SystemID: c.SystemID, State: c.State, Fork: from, Time: time.Now().UTC()}
	// If the end of the copy cannot be found (an interrupted rewind), every file after the fork is kept.
	if s.End, err = i.endOnDisk(ctx); err != nil {
		i.log.Warn("the end of the diverged tail is not known, everything from the fork on is kept", "error", err)
		s.End = ag.Position{LSN: pgfiles.MaxLSN}
	}
	if err := os.MkdirAll(filepath.Join(dir, "pg_wal"), 0o700); err != nil {
		return err
	}
	names, err := i.forkFiles(ag.LSN(c.WalSegmentSize), from.LSN, s.End.LSN)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n, err := copyDurably(i.path(name), filepath.Join(dir, strings.TrimPrefix(name, "global/")))
		if err != nil {
			return err
		}
		s.Files, s.Bytes = append(s.Files, name), s.Bytes+n
	}
	for _, d := range []string{filepath.Join(dir, "pg_wal"), dir, filepath.Dir(dir)} {
		if err := syncPath(d); err != nil {
			return err
		}
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return durable.Replace(filepath.Join(dir, "summary.json"), append(b, '\n'), 0o600)
}

// forkFiles lists the files of a fork, relative to PGData. Segments beyond the end are preallocated and left out.
func (i *Instance) forkFiles(segSize, from, end ag.LSN) ([]string, error) {
	entries, err := os.ReadDir(i.path("pg_wal"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		seg, ok := pgfiles.SegmentNumber(e.Name(), segSize)
		if ok = ok && seg >= from/segSize && seg <= end/segSize; ok || strings.HasSuffix(e.Name(), ".history") {
			names = append(names, "pg_wal/"+e.Name())
		}
	}
	return append(names, "global/pg_control"), nil
}

// copyDurably copies one file and flushes the copy; the caller flushes the directory.
func copyDurably(from, to string) (n int64, err error) {
	in, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	n, err = io.Copy(out, in)
	if err == nil {
		err = out.Sync()
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return n, err
}
