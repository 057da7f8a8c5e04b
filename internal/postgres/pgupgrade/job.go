package pgupgrade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// Side is one of the two clusters.
type Side struct {
	Install programs.Install
	Data    string // absolute
	WAL     string // absolute: the directory to which pg_wal is a link; "": none
}

// Job is the upgrade of one cluster.
type Job struct {
	Old, New  Side
	Superuser string
	Initdb    []string // of the new cluster, as Describe returns them
	Link      bool     // by hard links: afterwards only one of the two clusters can be used
	Work      string   // a private directory with a short path, for sockets and logs
	Tried     string   // a private directory for the new cluster of a Check
	Made      string   // the file that names the directories of this node's jobs: only those are ever removed
	Log       *slog.Logger
	// Emptied is called with the directory of an empty new cluster, before anything is in it; nil: nobody has anything
	// to do with it.
	Emptied func(ctx context.Context, data string) error
}

// The programs of the new version that pg_upgrade runs, and of the old one.
var (
	newTools = []string{"pg_upgrade", "pg_dump", "pg_dumpall", "pg_restore", "pg_resetwal", "pg_ctl", "psql", "vacuumdb", "initdb", "pg_controldata"}
	oldTools = []string{"pg_resetwal", "pg_ctl", "pg_controldata"}
)

// Missing lists the programs that an upgrade from one installation to another lacks.
func Missing(from, to programs.Install) (names []string) {
	for _, n := range oldTools {
		if !there(filepath.Join(from.BinDir, n)) {
			names = append(names, filepath.Join(from.BinDir, n))
		}
	}
	for _, n := range newTools {
		if !there(filepath.Join(to.BinDir, n)) {
			names = append(names, filepath.Join(to.BinDir, n))
		}
	}
	return names
}

// repaired are the first minor releases whose pg_dump leaves no line break in what it writes about a name. With an
// earlier one the owner of an object can put a statement, or a command of psql, into its name (CVE-2025-8715): the
// superuser executes it when the definitions are taken over, or this process's user does.
var repaired = map[int]int{15: 14, 16: 10, 17: 6}

// Unsafe returns why the programs of an installation must not take definitions over; "": they may.
func Unsafe(to programs.Install) string {
	if least, ok := repaired[to.Major]; ok && to.Num < to.Major*10000+least {
		return fmt.Sprintf("the pg_dump of PostgreSQL %s has the owner of an object run commands as this node's user by the object's name (CVE-2025-8715); install %d.%d or later", to.Version, to.Major, least)
	}
	return ""
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Check reports whether the upgrade could be made, by pg_upgrade --check, of an old cluster whose server runs. The new
// cluster is made for it in the directory Tried, and removed. The place of the real one is not touched.
func (j Job) Check(ctx context.Context) (err error) {
	if j.Tried == "" || j.Tried == j.New.Data {
		return errors.New("pg_upgrade --check needs a directory of its own")
	}
	if err := j.Clear(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.Clear(context.WithoutCancel(ctx))) }()
	j.New.Data, j.New.WAL = j.Tried, ""
	if err := j.prepare(ctx); err != nil {
		return err
	}
	return j.run(ctx, "--check")
}

// Clear removes what a Check has left that was interrupted: its processes and its directories. The old cluster's
// server is not touched. It must not be called while a Make may run.
// A directory in its place that is not this node's stays, and is an error.
func (j Job) Clear(ctx context.Context) error {
	owned, err := j.Owns(j.Tried)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !owned {
		return errors.Join(err, j.remove(j.Tried))
	}
	if err := endIn(ctx, j.Work, syscall.SIGKILL, toolEnds); err != nil {
		return err
	}
	if err := endIn(ctx, j.Tried, syscall.SIGKILL, toolEnds); err != nil {
		return err
	}
	// The directory goes last: it is the mark of what is left.
	return errors.Join(os.RemoveAll(j.Work), j.remove(j.Tried))
}

// Make makes the new cluster. The old one must be stopped in order. The directories of an interrupted Make are removed
// first, and no others. After an error, and after an interruption, Undo gives the old cluster back.
func (j Job) Make(ctx context.Context) error {
	if err := j.Undo(ctx); err != nil {
		return err
	}
	if err := late(j.Old.Data); err != nil {
		return err
	}
	if err := j.prepare(ctx); err != nil {
		return err
	}
	// A server that finds the file is a standby, of which pg_upgrade can take nothing over.
	if err := durable.Remove(filepath.Join(j.Old.Data, "standby.signal")); err != nil {
		return err
	}
	mode := "--copy"
	if j.Link {
		mode = "--link"
	}
	if j.New.Install.Major < 17 && !j.Link { // copying is the only other way, and has no name
		mode = ""
	}
	if err := errors.Join(j.run(ctx, mode), j.signal(j.Old.Data)); err != nil {
		return err
	}
	if err := j.signal(j.New.Data); err != nil {
		return err
	}
	return os.RemoveAll(j.Work)
}

// Empty makes an empty new cluster with the settings of the old one, whose server may run. The directories of an
// earlier call are removed first.
func (j Job) Empty(ctx context.Context) error {
	if err := j.Discard(ctx); err != nil {
		return err
	}
	return j.prepare(ctx)
}

// Discard removes the new cluster, and ends the processes on it. The old one is not touched, and its server may run.
func (j Job) Discard(ctx context.Context) error {
	if err := endIn(ctx, j.Work, syscall.SIGKILL, toolEnds); err != nil {
		return err
	}
	if owned, err := j.Owns(j.New.Data); err == nil && owned {
		if err := endIn(ctx, j.New.Data, syscall.SIGKILL, toolEnds); err != nil {
			return err
		}
	}
	if err := errors.Join(j.removeOwn(j.New.Data), j.removeWAL(), os.RemoveAll(j.Work)); err != nil {
		return fmt.Errorf("remove the new cluster: %w", err)
	}
	return nil
}

// Try reports whether an empty new cluster can be made, and takes the settings of the old one. It is made in the
// directory Tried, and removed.
func (j Job) Try(ctx context.Context) (err error) {
	if j.Tried == "" || j.Tried == j.New.Data {
		return errors.New("a trial needs a directory of its own")
	}
	if err := j.Clear(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.Clear(context.WithoutCancel(ctx))) }()
	j.New.Data, j.New.WAL = j.Tried, ""
	if err := j.prepare(ctx); err != nil {
		return err
	}
	server := programs.Tool{Path: filepath.Join(j.New.Install.BinDir, "postgres"), Args: []string{"-D", j.New.Data, "-C", "data_directory"}, Dir: j.Work}
	if out, err := server.Run(ctx, func(string) {}); err != nil {
		return fmt.Errorf("PostgreSQL %d does not take the settings: %w: %s", j.New.Install.Major, err, programs.LastText(out))
	}
	return nil
}

// HBA is the file with the rules of a server that is nobody's but this user's, in the private directory.
func (j Job) HBA() string { return j.hba() }

// Undo removes the new directory, and makes the old cluster as it was. Processes that an interruption has left behind
// are ended first.
func (j Job) Undo(ctx context.Context) error {
	if err := j.End(ctx); err != nil {
		return err
	}
	control := filepath.Join(j.Old.Data, "global", "pg_control")
	if there(control+".old") && !there(control) {
		if err := durable.Rename(control+".old", control); err != nil {
			return fmt.Errorf("give the old cluster back: %w", err)
		}
	}
	// It gives its room back before anything is written: the disk may be full.
	left := j.Sweep()
	if err := j.signal(j.Old.Data); err != nil {
		return err
	}
	return left
}

// ErrLeft is returned where the old cluster is as it was, and something of the new one could not be removed.
var ErrLeft = errors.New("remove the new cluster")

// Sweep removes what an upgrade has made and left. Nothing may run in it. Its errors are ErrLeft.
func (j Job) Sweep() error {
	err := errors.Join(j.removeOwn(j.New.Data), j.removeWAL(), os.RemoveAll(j.Work), durable.SyncDir(filepath.Dir(j.New.Data)))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLeft, err)
	}
	return nil
}

// removeWAL removes the WAL of the new cluster that is not in its data directory.
func (j Job) removeWAL() error {
	if j.New.WAL == "" {
		return nil
	}
	return errors.Join(j.removeOwn(j.New.WAL), durable.SyncDir(filepath.Dir(j.New.WAL)))
}

// signal puts standby.signal into a directory with a cluster.
func (j Job) signal(data string) error {
	if !there(filepath.Join(data, "PG_VERSION")) {
		return nil
	}
	return durable.Replace(filepath.Join(data, "standby.signal"), nil, 0o600)
}

// prepare makes the empty new cluster with the settings of the old one, and the private directory.
func (j Job) prepare(ctx context.Context) error {
	if j.Work == "" || overlap(j.New.Data, j.Old.Data) {
		return fmt.Errorf("%s is no place for the new cluster", j.New.Data)
	}
	if wal := j.New.WAL; wal != "" && (overlap(wal, j.Old.Data) || overlap(wal, j.New.Data) || overlap(wal, j.Old.WAL)) {
		return fmt.Errorf("%s is no place for the WAL of the new cluster", wal)
	}
	if err := os.RemoveAll(j.Work); err != nil {
		return err
	}
	if err := os.MkdirAll(j.Work, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(j.hba(), []byte("local all all trust\n"), 0o600); err != nil {
		return err
	}
	args := append([]string{"-D", j.New.Data, "-U", j.Superuser, "--auth-local=peer", "--auth-host=scram-sha-256"}, j.Initdb...)
	if err := j.mkdir(j.New.Data); err != nil {
		return err
	}
	if j.New.WAL != "" {
		if err := j.mkdir(j.New.WAL); err != nil {
			return err
		}
		args = append(args, "--waldir="+j.New.WAL)
	}
	// In the private directory it is found by End.
	initdb := programs.Tool{Path: filepath.Join(j.New.Install.BinDir, "initdb"), Args: args, Dir: j.Work}
	if out, err := initdb.Run(ctx, func(string) {}); err != nil {
		return fmt.Errorf("make an empty cluster of PostgreSQL %d: initdb: %w: %s", j.New.Install.Major, err, programs.LastText(out))
	}
	if j.Emptied != nil {
		if err := j.Emptied(ctx, j.New.Data); err != nil {
			return err
		}
	}
	return j.carry()
}

// overlap reports whether two directories are the same, or one is in the other.
func overlap(a, b string) bool {
	return a == b || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/")
}

// carry copies the settings of the old cluster into the new one. Those that the agent writes itself are left out.
func (j Job) carry() error {
	for _, name := range []string{"postgresql.conf", "postgresql.auto.conf"} {
		b, err := os.ReadFile(filepath.Join(j.Old.Data, name))
		if errors.Is(err, fs.ErrNotExist) && name == "postgresql.auto.conf" {
			continue
		}
		if err != nil {
			return fmt.Errorf("take the settings over: %w", err)
		}
		if name == "postgresql.auto.conf" {
			edited, err := settings.EditAutoConf(string(b), map[string]*string{settings.SynchronousNames: nil})
			if err != nil {
				return fmt.Errorf("take the settings over: %w", err)
			}
			b = []byte(edited)
		}
		if err := durable.Replace(filepath.Join(j.New.Data, name), b, 0o600); err != nil {
			return fmt.Errorf("take the settings over: %w", err)
		}
	}
	return nil
}

func (j Job) hba() string { return filepath.Join(j.Work, "hba.conf") }

// options are the settings with which pg_upgrade starts either server: only this user reaches it, by a socket in a
// private directory; nothing is archived, and no commit waits.
func (j Job) options(of Side) string {
	o := []string{"hba_file=" + j.hba(), "archive_mode=off", "synchronous_standby_names=", "default_transaction_read_only=off", "huge_pages=try", "restore_command="}
	if of.Install.Major >= 17 {
		o = append(o, "summarize_wal=off", "sync_replication_slots=off")
	}
	return "-c " + strings.Join(o, " -c ")
}

// run runs pg_upgrade in the private directory. Its error has what pg_upgrade found.
func (j Job) run(ctx context.Context, mode string) error {
	args := []string{
		"-b", j.Old.Install.BinDir, "-B", j.New.Install.BinDir, "-d", j.Old.Data, "-D", j.New.Data, "-U", j.Superuser,
		"-s", j.Work, "-p", "5432", "-P", "5433", "-j", strconv.Itoa(min(4, runtime.NumCPU())), "-o", j.options(j.Old), "-O", j.options(j.New),
	}
	if mode != "" {
		args = append(args, mode)
	}
	cmd := programs.Tool{Path: filepath.Join(j.New.Install.BinDir, "pg_upgrade"), Args: args, Dir: j.Work}
	out, err := cmd.Run(ctx, func(line string) {
		if j.Log != nil {
			j.Log.Info("pg_upgrade", "says", line)
		}
	})
	if err != nil {
		return fmt.Errorf("pg_upgrade: %w: %s%s", err, programs.LastText(out), j.reports())
	}
	return nil
}

// maxReport bounds what is read of a list that pg_upgrade has written.
const maxReport = 2 << 10

// reports returns what pg_upgrade has listed in files: the objects that stand in its way. If it has listed none, the
// end of the log of its servers says why one did not start, as with a setting that the new version does not know.
func (j Job) reports() string {
	if lists := j.written(".txt", func(b []byte) []byte { return b[:min(len(b), maxReport)] }); lists != "" {
		return lists
	}
	return j.written("pg_upgrade_server.log", func(b []byte) []byte { return b[max(0, len(b)-maxReport):] })
}

// written returns the parts of the files that pg_upgrade has written whose names end so.
func (j Job) written(suffix string, part func([]byte) []byte) string {
	var all strings.Builder
	for _, dir := range []string{filepath.Join(j.New.Data, "pg_upgrade_output.d"), j.Work} {
		root, err := os.OpenRoot(dir)
		if err != nil {
			continue // it has written none
		}
		_ = fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, suffix) || all.Len() > 2*maxReport {
				return nil //nolint:nilerr // the rest is still worth reading
			}
			if b, err := root.ReadFile(path); err == nil && len(b) > 0 {
				fmt.Fprintf(&all, "\n%s: %s", e.Name(), strings.TrimSpace(string(part(b))))
			}
			return nil
		})
		_ = root.Close()
	}
	return all.String()
}
