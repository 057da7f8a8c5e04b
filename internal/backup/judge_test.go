package backup

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// healthy are the facts of a group whose backups are as they should be.
func healthy(t *testing.T) Facts {
	t.Helper()
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	p, _ := whole()
	return Facts{
		Now: now, Plan: p,
		Catalog:  Catalog{Histories: histories, WAL: archive(t, "1:2-4", "3:5-8", "4:9-12"), Backups: []Backup{taken(1, 2, now.Add(-24*time.Hour)), taken(3, 6, now.Add(-time.Hour))}},
		Archiver: &Archiver{Node: "n1", On: true, Archived: 9, LastArchived: "000000040000000000000012", ArchivedAt: now.Add(-time.Minute), Timeline: 4, SegmentSize: size},
	}
}

// TestJudge holds what is told of the backups, and that everything but good news says why it matters and what to run.
func TestJudge(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(f *Facts)
		want   []string // level and the beginning or a part of the finding
	}{
		"all is well":     {func(*Facts) {}, nil},
		"no backup":       {func(f *Facts) { f.Catalog.Backups = nil }, []string{"problem there is no backup"}},
		"an old one":      {func(f *Facts) { f.Now = f.Now.Add(60 * time.Hour); f.Archiver.ArchivedAt = f.Now }, []string{"warning ended 2 days ago"}},
		"a damaged one":   {func(f *Facts) { f.Catalog.Backups[1].Failed = true }, []string{"problem wrong checksums"}},
		"no repository":   {func(f *Facts) { f.Catalog = Catalog{Problem: "missing stanza path"} }, []string{"problem missing stanza path"}},
		"no primary":      {func(f *Facts) { f.Archiver = nil }, []string{"warning does not say"}},
		"not archiving":   {func(f *Facts) { f.Archiver.On = false }, []string{"problem archives nothing"}},
		"archiving fails": {func(f *Facts) { f.Archiver.FailedAt = f.Now; f.Archiver.LastFailed = "x" }, []string{"problem archiving fails on n1"}},
		"the repository is full": {
			func(f *Facts) {
				a := f.Archiver
				a.FailedAt, a.LastFailed, a.Waiting, a.Since, a.Kept, a.Free, a.Rate, a.Reason = f.Now, "x", 412, f.Now.Add(-3*time.Hour), 412*size, 20<<30, 2<<20, "the repository /backup is full"
				a.ArchivedAt = f.Now.Add(-4 * time.Hour)
			},
			[]string{"problem since 2026-11-26 09:00:00Z (for 3 h): x was refused 0 s ago, because the repository /backup is full; 412 segments wait, 6.4 GiB on its disk, which has 20.0 GiB free and is full in 2 h at the present rate"},
		},
		"it failed before": {func(f *Facts) { f.Archiver.FailedAt = f.Archiver.ArchivedAt.Add(-time.Second) }, nil},
		"it is slow":       {func(f *Facts) { f.Archiver.Waiting = 9 }, []string{"warning 9 segments wait"}},
		"a gap":            {func(f *Facts) { f.Catalog.WAL = archive(t, "1:2-4", "3:5-6", "4:9-12") }, []string{"problem lacks 2 segments"}},
		"a gap before the last backup": {
			func(f *Facts) { f.Catalog.WAL = archive(t, "1:2-3", "3:5-8", "4:9-12") }, []string{"warning lacks 1 segments of WAL before the backup 3-6"},
		},
		"no history":            {func(f *Facts) { f.Catalog.Histories = nil }, []string{"problem no backup can be followed to timeline 4"}},
		"a timeline is missing": {func(f *Facts) { f.Archiver.Timeline = 5 }, []string{"problem nothing of timeline 5"}},
		"a timeline has begun":  {func(f *Facts) { f.Archiver.Timeline, f.Archiver.Waiting = 5, 1 }, nil},
		"a stanza of others":    {func(f *Facts) { f.Catalog.Owner = "other" }, []string{"problem is of another group (other)"}},
		"another replica":       {func(f *Facts) { f.Lacking = []string{"n2 has no backups enabled"} }, []string{"warning n2 has no backups"}},
	} {
		f := healthy(t)
		tt.change(&f)
		var bad []Finding
		for _, x := range Judge(f) {
			if x.Level != OK {
				bad = append(bad, x)
				if x.Why == "" || x.Run == "" {
					t.Errorf("%s: %q has no reason, or nothing to run", name, x.What)
				}
			}
		}
		ok := len(bad) == len(tt.want)
		for i := range min(len(bad), len(tt.want)) {
			level, part, _ := strings.Cut(tt.want[i], " ")
			ok = ok && string(bad[i].Level) == level && strings.Contains(bad[i].What, part)
		}
		if !ok {
			t.Errorf("%s: %+v", name, bad)
		}
	}
	var said []string
	for _, x := range Judge(healthy(t)) {
		said = append(said, x.What)
	}
	if i := slices.IndexFunc(said, func(s string) bool { return strings.Contains(s, "any point from 2026-11-25 12:00:00Z (1-2)") }); i < 0 {
		t.Errorf("the first point that can be restored is not told: %q", said)
	}
}
