package check

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/storage"
	"github.com/coteriedb/coterie/internal/node/majors"
)

// maxTablespaces bounds the tablespaces that are looked at.
const maxTablespaces = 64

// FindStorage returns the volumes below the directories of the node in dir, and the problems of the mirrors among them.
func FindStorage(ctx context.Context, dir string, r *storage.Reader) ([]Finding, error) {
	l, err := config.NewLayout(dir)
	if err != nil {
		return nil, err
	}
	if found, err := absent(l); found != nil || err != nil {
		return found, err
	}
	return append(judgeStorage(r.Look(ctx, directories(l)...)), findLeft(l)...), nil
}

// findLeft returns what is left of a major upgrade that was given up.
func findLeft(l config.Layout) []Finding {
	u, err := majors.Read(l)
	if err != nil {
		return nil
	}
	dir := majors.Left(l, u)
	if dir == "" {
		return nil
	}
	return []Finding{{
		Level: Warning, What: dir + " is left of a major upgrade that was given up: it could not be removed", Why: "it takes room, and no upgrade can be made there",
		Run: "see log/agent.log for the reason; the next start of the agent tries again",
	}}
}

// directories returns those of the node's directories that data is in and that are there. Each may stand on a volume
// of its own.
func directories(l config.Layout) (out []string) {
	all := []string{l.Data(), filepath.Join(l.Data(), "pg_wal"), l.Etcd(), l.State()}
	spaces, _ := os.ReadDir(filepath.Join(l.Data(), "pg_tblspc"))
	for _, s := range spaces[:min(len(spaces), maxTablespaces)] {
		all = append(all, filepath.Join(l.Data(), "pg_tblspc", s.Name()))
	}
	for _, d := range all {
		if _, err := os.Stat(d); err == nil {
			out = append(out, d)
		}
	}
	return out
}

func judgeStorage(all []storage.Volume) (out []Finding) {
	for _, v := range storage.Distinct(all) {
		out = append(out, Finding{Level: OK, What: standsOn(v)})
		for _, f := range v.Findings() {
			x := Finding{Level: Warning, What: f.What, Why: "the data has one copy less on this machine than it should", Run: f.Run}
			switch f.State {
			case storage.Degraded:
				x.Level, x.Why = Problem, "if the other side fails, too, this node loses its copy: then the group fails over, and the copy is made again"
			case storage.Errors:
				x.Why = "a device that returns errors is likely to fail"
			case storage.Unknown:
				x.Level, x.Why = Failed, "a side could be missing"
			case storage.None, storage.Whole, storage.Resync:
			}
			out = append(out, x)
		}
	}
	return out
}

// standsOn returns a line about the volume below a directory.
func standsOn(v storage.Volume) string {
	s := fmt.Sprintf("%s stands on %s", v.Dir, v.Name)
	switch {
	case v.Kind == storage.Other && v.Why != "":
		return fmt.Sprintf("what %s stands on is not known: %s", v.Dir, v.Why)
	case v.Kind == storage.Other:
		return fmt.Sprintf("%s, a file system of the type %s, which is not looked into", s, v.Level)
	case v.Kind == storage.Plain || !v.Mirrored:
		return s + ", which is no mirror that this machine knows of: a device that fails takes this copy with it"
	}
	var sides []string
	for _, d := range v.Devices {
		sides = append(sides, d.Name+" "+d.State)
	}
	s += fmt.Sprintf(", a mirror of %s (%s), %s", v.Kind, v.Level, v.State)
	if len(sides) > 0 {
		s += ": " + strings.Join(sides, ", ")
	}
	if v.Filling != nil {
		s += "; " + v.Filling.String()
	}
	return s
}
