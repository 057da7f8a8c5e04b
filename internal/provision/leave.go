package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/unixuser"
	"github.com/coteriedb/coterie/internal/node/pgserver"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/postgres/adopt"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// LeftConfig is what the configuration file of a node is called once the node has left its group. No agent starts it.
const LeftConfig = config.File + ".left"

// Departure is the record of a node that leaves its group. It is on disk before the agent is stopped, so that the rest
// can go on after any interruption, and no agent starts while it is there.
type Departure struct {
	Node      string    `json:"node"`
	Group     string    `json:"group"`
	Last      bool      `json:"last,omitempty"`    // no other member is left: the group has ended
	Forced    bool      `json:"forced,omitempty"`  // no other member was asked
	Destroy   bool      `json:"destroy,omitempty"` // the node directory is erased at last: see Erase
	Outside   []string  `json:"outside,omitempty"` // what remains of a node that is erased, outside its directory
	Since     time.Time `json:"since"`
	Data      string    `json:"data,omitempty"`  // where the data directory stays; "": the node holds no copy
	Start     string    `json:"start,omitempty"` // the command that starts PostgreSQL on it
	Unset     []string  `json:"unset,omitempty"` // settings that were removed from postgresql.auto.conf
	Completed bool      `json:"completed"`       // the node directory has no node in it any more
}

// ReadDeparture returns the record of a node that leaves or has left; nil if it does not.
func ReadDeparture(l config.Layout) (*Departure, error) {
	b, err := os.ReadFile(l.LeavingFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var d Departure
	if err := json.Unmarshal(b, &d); err != nil {
		return nil, fmt.Errorf("%s: %w", l.LeavingFile(), err)
	}
	return &d, nil
}

// Save writes the record.
func (d *Departure) Save(l config.Layout) error { return durable.ReplaceJSON(l.LeavingFile(), d) }

// CheckKeep refuses a place for the data directory to which it cannot be moved by a rename.
func CheckKeep(l config.Layout, cfg config.Config, to string) error {
	switch {
	case cfg.PostgreSQL == nil:
		return fail.Usagef("this node is a witness and holds no data; leave --keep-data away")
	case !filepath.IsAbs(to):
		return fail.Usagef("--keep-data %s: give an absolute path", to)
	}
	from, to := cfg.PostgreSQL.Data, filepath.Clean(to)
	if to == filepath.Clean(from) {
		return nil
	}
	if _, err := adopt.Load(l.State()); err == nil {
		return fail.Usagef("this cluster was adopted, and is given back where it was found, in %s; leave --keep-data away", from)
	}
	if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
		return fail.Refusedf("%s exists already; nothing was changed: name a directory that does not", to)
	}
	real, err1 := filepath.EvalSymlinks(from)
	parent, err2 := filepath.EvalSymlinks(filepath.Dir(to))
	if err := errors.Join(err1, err2); err != nil {
		return fail.Refusedf("the data cannot be moved to %s: %w; nothing was changed", to, err)
	}
	if parent == real || strings.HasPrefix(parent, real+"/") {
		return fail.Usagef("--keep-data %s: that is in the data directory itself; choose a place beside it", to)
	}
	a, err1 := os.Stat(real)
	b, err2 := os.Stat(parent)
	if err := errors.Join(err1, err2); err != nil {
		return fail.Refusedf("the data cannot be moved to %s: %w; nothing was changed", to, err)
	}
	if a.Sys().(*syscall.Stat_t).Dev != b.Sys().(*syscall.Stat_t).Dev || isMount(from) {
		return fail.Refusedf("%s and %s are on different file systems, and nothing is copied; nothing was changed: choose a directory on the file system of the data, "+
			"or leave --keep-data away and copy the directory afterwards", from, parent)
	}
	if syscall.Access(parent, 2|1) != nil {
		return fail.Refusedf("user %s, who owns the data, cannot make %s; nothing was changed: make %s writable to that user first, or choose another directory", unixuser.Name(os.Geteuid()), to, parent)
	}
	return nil
}

// Inside reports whether a place that does not exist yet would be in the node directory.
func Inside(l config.Layout, path string) bool {
	return within(real(filepath.Dir(filepath.Clean(path))), l.Dir)
}

// isMount reports whether a file system is mounted at the directory, which can then not be renamed.
func isMount(dir string) bool {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false
	}
	a, err1 := os.Stat(real)
	b, err2 := os.Stat(filepath.Dir(real))
	return err1 == nil && err2 == nil && a.Sys().(*syscall.Stat_t).Dev != b.Sys().(*syscall.Stat_t).Dev
}

// Depart makes the data of a node whose agent is stopped an ordinary data directory, and the node directory one that no
// agent starts. say is called with each step when it is done. The record d must be on disk; Depart keeps it. It can be
// repeated after an interruption at any point.
func Depart(ctx context.Context, l config.Layout, d *Departure, say func(string)) error {
	unlock, err := config.Lock(l)
	if err != nil {
		return fail.Unhealthyf("%w; stop it, and run %s again", err, d.Command(l))
	}
	defer unlock()
	if err := d.Goes(l); err != nil {
		return err
	}
	cfg, err := config.Load(l.Dir)
	if _, left := os.Stat(filepath.Join(l.Dir, LeftConfig)); err != nil && left == nil {
		d.Completed = true
		return d.Save(l)
	}
	if err != nil {
		return err
	}
	if cfg.PostgreSQL != nil {
		if err := departData(ctx, l, cfg, d, say); err != nil {
			return err
		}
	}
	if err := durable.Rename(filepath.Join(l.Dir, config.File), filepath.Join(l.Dir, LeftConfig)); err != nil {
		return err
	}
	fault.Point("leave.renamed") // the node directory is no node any more; the record does not say so
	d.Completed = true
	return d.Save(l)
}

// departData makes the copy a primary's, takes the group's marks out of it, and moves it to its place.
func departData(ctx context.Context, l config.Layout, cfg config.Config, d *Departure, say func(string)) error {
	from := cfg.PostgreSQL.Data
	if d.Data == "" && !d.Destroy { // nothing that could be kept
		return nil
	}
	if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
		if d.Data == "" {
			return EndKeeper(ctx, l)
		}
		if _, err := os.Stat(d.Data); err == nil {
			return nil // it was moved before an interruption
		}
		return fail.Unhealthyf("the data directory %s does not exist; mount its file system, and run %s again: it goes on", from, d.Command(l))
	}
	if pid := serverOf(from); pid != 0 {
		return fail.Unhealthyf("PostgreSQL still runs on %s (process %d), although no agent does; stop it with %s stop -D %s, and run %s again",
			from, pid, filepath.Join(cfg.PostgreSQL.BinDir, "pg_ctl"), from, d.Command(l))
	}
	if err := EndKeeper(ctx, l); err != nil { // it would put standby.signal back
		return err
	}
	if d.Data == "" { // it is erased
		return nil
	}
	pg, err := pgserver.NewInstance(cfg, l, nil)
	if err != nil {
		return err
	}
	defer func() { _ = pg.Close() }()
	say("replaying the WAL that is here, up to its end")
	if err := pg.EndRecovery(ctx); errors.Is(err, postgres.ErrNotWhole) {
		return fail.Refusedf("%w, so no server could start on %s; nothing of it can be kept: delete the node directory", err, from)
	} else if err != nil {
		return err
	}
	say("PostgreSQL starts by itself on this copy: its recovery has ended")
	fault.Point("leave.recovered") // the copy is a primary's; the group's marks are in it
	if err := unmark(l, pg, cfg, d); err != nil {
		return err
	}
	say("the group's marks are taken out of " + from)
	fault.Point("leave.unmarked") // the group's marks are away; the data directory is in its old place
	if d.Data != from {
		if err := move(from, d.Data); err != nil {
			return fmt.Errorf("move the data directory: %w", err)
		}
		say("moved to " + d.Data)
	}
	fault.Point("leave.moved") // the data directory is in its place; an agent's configuration still names the old one
	return nil
}

// move moves a data directory to a place on its file system. Where from is a symbolic link, the directory that it leads
// to is moved, and then the link is removed.
func move(from, to string) error {
	real, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	if err := durable.Rename(real, to); err != nil {
		return err
	}
	if st, err := os.Lstat(from); err != nil || st.Mode()&fs.ModeSymlink == 0 {
		return nil //nolint:nilerr // nothing is left there
	}
	return durable.Remove(from)
}

// unmark takes out of a stopped copy what the group put into it.
func unmark(l config.Layout, pg *postgres.Instance, cfg config.Config, d *Departure) error {
	if a, err := adopt.Load(l.State()); err == nil {
		d.Start = a.StartCommand(a.BinDir)
		if err := a.Undo(func() error { return pg.WriteAutoConf(nil) }); err != nil {
			return fmt.Errorf("give %s back: %w", a.Data, err)
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	} else {
		d.Start = fmt.Sprintf("%s -D %s -l %s start", filepath.Join(cfg.PostgreSQL.BinDir, "pg_ctl"), d.Data, filepath.Join(d.Data, "log.txt"))
		if err := unset(pg, l, d); err != nil {
			return err
		}
	}
	data := cfg.PostgreSQL.Data
	return errors.Join(removeSlots(data), removeMarks(data), durable.SyncDir(data))
}

// groupArchive are the settings that say where the group archives. A node that leaves others behind must
// not write to the archive of their history.
var groupArchive = []string{"archive_mode", "archive_command", "archive_library"}

// unset removes the settings from postgresql.auto.conf that only mean something in the group, and lists them in d.
func unset(pg *postgres.Instance, l config.Layout, d *Departure) error {
	before, err := os.ReadFile(filepath.Join(pg.Config().PGData, "postgresql.auto.conf"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	set, err := pg.OwnConflicts()
	if err != nil {
		return err
	}
	set[settings.SynchronousNames] = nil
	if !d.Last {
		for _, name := range groupArchive {
			set[name] = nil
			if _, was := settings.AutoConfValue(string(before), name); was && !slices.Contains(d.Unset, name) {
				d.Unset = append(d.Unset, name)
			}
		}
	}
	if err := d.Save(l); err != nil { // before they are gone
		return err
	}
	if err := pg.WriteAutoConf(set); err != nil {
		return err
	}
	return pg.ForgetConflicts()
}

// removeMarks removes the files that the agent leaves in a data directory, in that of WAL and in tablespaces.
func removeMarks(data string) error {
	places := []string{data, filepath.Join(data, "pg_wal")}
	spaces, err := os.ReadDir(filepath.Join(data, "pg_tblspc"))
	for _, s := range spaces {
		place := filepath.Join(data, "pg_tblspc", s.Name())
		if st, err := os.Stat(place); err == nil && st.IsDir() { // else there is nothing, as of a tablespace whose disk is gone
			places = append(places, place)
		}
	}
	for _, dir := range places {
		err = errors.Join(err, durable.Remove(filepath.Join(dir, "coterie.probe")))
	}
	return errors.Join(err, durable.Remove(filepath.Join(data, pgserver.CopyFile)), durable.Remove(filepath.Join(data, "global", "pg_control.reseeding")))
}

// removeSlots removes the group's replication slots of a stopped server: nothing would ever advance them again.
func removeSlots(data string) error {
	dir := filepath.Join(data, "pg_replslot")
	slots, err := os.ReadDir(dir)
	for _, s := range slots {
		if strings.HasPrefix(s.Name(), settings.ApplicationPrefix) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, s.Name())))
		}
	}
	return err
}

// serverOf returns the process of the server that runs on a data directory; 0: none does.
func serverOf(data string) int {
	b, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), "\n")
	var pid int
	if _, err := fmt.Sscan(strings.TrimPrefix(strings.TrimSpace(first), "-"), &pid); err != nil || pid <= 0 || pid == os.Getpid() {
		return 0
	}
	real, err := filepath.EvalSymlinks(data)
	if err != nil {
		return 0
	}
	if at, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err == nil && at != real {
		return 0 // another program has the number now
	}
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return 0
	}
	return pid
}

// HoldsCopy reports whether the data directory of the node holds a copy that could be kept. A copy that was being made
// is none: its pg_control comes last. Neither is one that has not read its first WAL, or that was being rewound.
func HoldsCopy(l config.Layout, cfg config.Config) bool {
	if cfg.PostgreSQL == nil {
		return false
	}
	for _, unfinished := range []string{filepath.Join(cfg.PostgreSQL.Data, "backup_label"), filepath.Join(l.State(), "rewinding.json")} {
		if _, err := os.Lstat(unfinished); err == nil {
			return false
		}
	}
	_, err := os.Stat(filepath.Join(cfg.PostgreSQL.Data, "global", "pg_control"))
	return err == nil
}
