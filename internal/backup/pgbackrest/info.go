package pgbackrest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/backup"
)

// stanza is a stanza in the answer of pgbackrest info.
type stanza struct {
	Name    string `json:"name"`
	Archive []struct {
		ID string `json:"id"`
	} `json:"archive"`
	Backup []struct {
		Annotation map[string]string `json:"annotation"`
		Archive    struct{ Start, Stop string }
		Error      bool
		Info       struct {
			Size       int64
			Repository struct{ Delta int64 }
		}
		Label     string
		LSN       struct{ Start, Stop string }
		Timestamp struct{ Start, Stop int64 }
		Type      string
	} `json:"backup"`
	DB []struct {
		ID      int    `json:"id"`
		System  uint64 `json:"system-id"`
		Version string `json:"version"`
	} `json:"db"`
	Repo []struct {
		Status struct {
			Code    int
			Message string
		}
	}
	Status struct {
		Code    int
		Message string
		Lock    struct{ Backup struct{ Held bool } }
	} `json:"status"`
}

// The codes of a stanza's status that are not a problem: it is whole, or has no backup yet. With the last one the
// program could not look, and what it tells beside is nothing.
const (
	statusOK       = 0
	statusNoBackup = 2
	statusOther    = 99
)

// Parse reads the answer of pgbackrest info --output=json for one stanza. archives are the names of the directories
// with the stanza's WAL, the newest last.
func Parse(text []byte, name string) (c backup.Catalog, archives []string, err error) {
	var all []stanza
	if err := json.Unmarshal(text, &all); err != nil {
		return c, nil, fmt.Errorf("pgbackrest info: its answer is not understood: %w", err)
	}
	i := slices.IndexFunc(all, func(s stanza) bool { return s.Name == name })
	if i < 0 {
		return backup.Catalog{Problem: "it has no stanza " + name}, nil, nil
	}
	s := all[i]
	if s.Status.Code == statusOther {
		said := s.Status.Message
		for _, r := range s.Repo {
			if r.Status.Code == statusOther {
				said = brief(r.Status.Message)
			}
		}
		return c, nil, fmt.Errorf("pgbackrest: %s", said)
	}
	if s.Status.Code != statusOK && s.Status.Code != statusNoBackup {
		c.Problem = s.Status.Message
	}
	c.Running = s.Status.Lock.Backup.Held
	for _, b := range s.Backup {
		c.Backups = append(c.Backups, backup.Backup{
			Label: b.Label, Kind: backup.Kind(b.Type), Started: time.Unix(b.Timestamp.Start, 0).UTC(), Ended: time.Unix(b.Timestamp.Stop, 0).UTC(),
			Size: b.Info.Size, Stored: b.Info.Repository.Delta, Begin: b.LSN.Start, End: b.LSN.Stop, BeginWAL: b.Archive.Start, EndWAL: b.Archive.Stop,
			Failed: b.Error, Group: b.Annotation[groupKey], Node: b.Annotation[nodeKey],
		})
	}
	slices.SortStableFunc(c.Backups, func(a, b backup.Backup) int { return a.Ended.Compare(b.Ended) })
	for _, d := range s.DB {
		c.System = d.System                  // the newest last
		c.Major, _ = strconv.Atoi(d.Version) // 0: of a release before 10
	}
	for _, a := range s.Archive {
		archives = append(archives, a.ID)
	}
	return c, archives, nil
}

// Backups asks the program for the backups.
func (t *Tool) Backups(ctx context.Context) (backup.Catalog, error) {
	c, _, err := t.info(ctx)
	return c, err
}

// Stanzas returns the names of all stanzas of the repository.
func (t *Tool) Stanzas(ctx context.Context) (names []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	out, err := t.run(ctx, command{args: []string{"--config=" + filepath.Join(t.dir, ConfigFile), "info", "--output=json"}})
	if err != nil {
		return nil, err
	}
	var all []stanza
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return nil, fmt.Errorf("pgbackrest info: its answer is not understood: %w", err)
	}
	for _, s := range all {
		names = append(names, s.Name)
	}
	return names, nil
}

func (t *Tool) info(ctx context.Context) (backup.Catalog, []string, error) {
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	out, err := t.run(ctx, command{args: t.with("info", "--output=json")})
	if err != nil {
		return backup.Catalog{}, nil, err
	}
	c, archives, err := Parse([]byte(out), t.plan.Stanza)
	if err != nil {
		err = errors.New(t.secrets.Hide(err.Error()))
	}
	return c, archives, err
}

// Catalog asks the program what there is.
func (t *Tool) Catalog(ctx context.Context) (backup.Catalog, error) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	c, archives, err := t.info(ctx)
	if err != nil || len(archives) == 0 {
		return c, err
	}
	dir := path.Join("archive", t.plan.Stanza, archives[len(archives)-1])
	out, err := t.run(ctx, command{args: t.with("repo-ls", "--recurse", "--output=json", dir)})
	if err != nil {
		return c, err
	}
	names, histories, err := parseFiles([]byte(out))
	if err != nil {
		return c, err
	}
	c.WAL = names
	for tli, at := range histories {
		histories[tli] = path.Join(dir, at)
	}
	if c.Histories, err = t.histories(ctx, histories); err != nil {
		return c, err
	}
	c.Owner, err = t.Owner(ctx)
	return c, err
}

// parseFiles reads the answer of repo-ls: the names of segments, and the paths of history files.
func parseFiles(text []byte) (wal []string, histories map[uint32]string, err error) {
	var files map[string]struct {
		Type string
		Size int64
	}
	if err := json.Unmarshal(text, &files); err != nil {
		return nil, nil, errors.New("pgbackrest repo-ls: its answer is not understood")
	}
	histories = map[uint32]string{}
	for at, f := range files {
		name := path.Base(at)
		switch {
		case f.Type != "file":
		case strings.HasSuffix(name, ".history") && f.Size < 1<<20:
			if tli, err := strconv.ParseUint(strings.TrimSuffix(name, ".history"), 16, 32); err == nil && len(name) == 16 {
				histories[uint32(tli)] = at
			}
		case len(name) > 24 && name[24] == '-': // the digits, a checksum, the compression
			wal = append(wal, name[:24])
		case strings.HasPrefix(name[min(24, len(name)):], ".partial-"):
			wal = append(wal, name[:24]+".partial")
		}
	}
	slices.Sort(wal)
	return wal, histories, nil
}
