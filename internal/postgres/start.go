package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// PrepareStart prepares the files of the stopped server for a start in either role. It writes the private
// authentication files and standby.signal, makes the settings of set in postgresql.auto.conf (nil removes one), and
// removes reserved ones from it. It also removes timeline files of an interrupted promotion: the server would take the
// skipped id for the newest timeline and refuse to start. It fails while a rewind is unfinished. The keeper removes
// standby.signal while it starts a primary.
func (i *Instance) PrepareStart(ctx context.Context, set map[string]*string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	if i.Interrupted() {
		return fmt.Errorf("start PostgreSQL: %w", ErrInterrupted)
	}
	if err := i.WriteHBA(); err != nil {
		return err
	}
	if err := i.removeTrailingSkips(0); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	keep, err := i.ownSync()
	if err == nil {
		keep = maps.Clone(keep)
		if keep == nil {
			keep = map[string]*string{}
		}
		maps.Copy(keep, set)
		err = i.WriteAutoConf(keep)
	}
	if err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	return i.createStandbySignal()
}

// removeTrailingSkips removes the empty history files above the newest timeline that exists here, from least on. Those
// below it must stay: a secondary requests the history file of every id up to the newest.
func (i *Instance) removeTrailingSkips(least ag.Timeline) error {
	files, err := i.historyFiles()
	if err != nil {
		return err
	}
	tlis := make([]ag.Timeline, 0, len(files))
	for tli := range files {
		tlis = append(tlis, tli)
	}
	slices.Sort(tlis)
	removed := false
	for _, tli := range slices.Backward(tlis) {
		if files[tli] > 0 || tli < least {
			break
		}
		if err := os.Remove(i.historyPath(tli)); err != nil {
			return fmt.Errorf("remove the mark of a skipped timeline: %w", err)
		}
		removed = true
		i.log.Info("removed the mark of a timeline that was never begun", "timeline", tli)
	}
	if !removed {
		return nil
	}
	return syncPath(i.path("pg_wal"))
}

// ownSync returns the synchronous_standby_names of postgresql.auto.conf if the agent wrote it. The value survives a
// restart: commits of a returning primary wait until the agent has set the record's value.
func (i *Instance) ownSync() (map[string]*string, error) {
	content, err := os.ReadFile(i.autoConf())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	value, ok := settings.AutoConfValue(string(content), "synchronous_standby_names")
	s, err := settings.ParseSync(value)
	if !ok || err != nil {
		return nil, nil // not ours
	}
	for _, name := range s.Names {
		if _, _, ours := settings.ParseApplication(name); !ours {
			return nil, nil
		}
	}
	return map[string]*string{"synchronous_standby_names": &value}, nil
}

// writtenSync is the synchronous_standby_names in a postgresql.auto.conf.
type writtenSync struct {
	file  os.FileInfo
	value string
	ok    bool // the file has one
}

// writtenSync returns the synchronous_standby_names that postgresql.auto.conf has. It reads the file only if that was
// replaced since: ALTER SYSTEM writes a new one.
func (i *Instance) writtenSync() (value string, ok bool, err error) {
	st, err := os.Stat(i.autoConf())
	if err != nil {
		return "", false, err
	}
	if w := i.written.Load(); w != nil && os.SameFile(w.file, st) && w.file.ModTime().Equal(st.ModTime()) && w.file.Size() == st.Size() {
		return w.value, w.ok, nil
	}
	content, err := os.ReadFile(i.autoConf())
	if err != nil {
		return "", false, err
	}
	w := writtenSync{file: st}
	w.value, w.ok = settings.AutoConfValue(string(content), settings.SynchronousNames)
	i.written.Store(&w)
	return w.value, w.ok, nil
}

// WriteAutoConf edits postgresql.auto.conf of a stopped server. It sets the settings of set (nil removes one), removes
// reserved ones that set does not name, and keeps every other line. A running server would overwrite the file: use
// ALTER SYSTEM there.
func (i *Instance) WriteAutoConf(set map[string]*string) error {
	old, err := os.ReadFile(i.autoConf())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("edit postgresql.auto.conf: %w", err)
	}
	edited, err := settings.EditAutoConf(string(old), set)
	if err != nil {
		return fmt.Errorf("edit postgresql.auto.conf: %w", err)
	}
	if edited == string(old) && exists(i.autoConf()) {
		return nil
	}
	if err := durable.Replace(i.autoConf(), []byte(edited), 0o600); err != nil {
		return fmt.Errorf("edit postgresql.auto.conf: %w", err)
	}
	return nil
}

func (i *Instance) autoConf() string { return i.path("postgresql.auto.conf") }

func (i *Instance) createStandbySignal() error {
	if err := durable.Replace(i.path("standby.signal"), nil, 0o600); err != nil {
		return fmt.Errorf("create standby.signal: %w", err)
	}
	return nil
}
