package backup

import (
	"cmp"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/lib/units"
)

// Level is how bad a finding is. The levels are those of package check.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Problem Level = "problem"
)

// Finding is something that a person should know of the backups.
type Finding struct {
	Level          Level
	What, Why, Run string
}

// Archiver is what the primary's server says of its archiving.
type Archiver struct {
	Node         string    `json:"node"`
	On           bool      `json:"on"` // archive_mode is, and archive_command is the one of the plan
	Archived     int64     `json:"archived"`
	Failed       int64     `json:"failed"`
	LastArchived string    `json:"last_archived_wal,omitempty"`
	LastFailed   string    `json:"last_failed_wal,omitempty"`
	ArchivedAt   time.Time `json:"last_archived,omitzero"`
	FailedAt     time.Time `json:"last_failed,omitzero"`
	Waiting      int       `json:"waiting"` // segments that are to be archived
	Since        time.Time `json:"waiting_since,omitzero"`
	Kept         int64     `json:"waiting_bytes"`
	Rate         int64     `json:"waiting_bytes_per_second"`
	Free         int64     `json:"free_bytes"`       // on the disk of WAL
	Reason       string    `json:"reason,omitempty"` // what is wrong with the repository, as far as a look at it tells
	Timeline     uint32    `json:"timeline"`
	SegmentSize  int64     `json:"segment_size"`
}

// Failing reports whether the last try to archive failed.
func (a Archiver) Failing() bool { return a.FailedAt.After(a.ArchivedAt) }

// Behind returns since when the archive lacks what the server has; zero: nothing waits.
func (a Archiver) Behind() time.Time {
	if a.Since.IsZero() || a.Since.After(a.ArchivedAt) {
		return a.Since
	}
	return a.ArchivedAt
}

// FullIn returns how long the disk of WAL lasts at the rate at which what waits becomes more. ok is false if it does
// not become more.
func (a Archiver) FullIn() (d time.Duration, ok bool) {
	if a.Rate <= 0 {
		return 0, false
	}
	return time.Duration(min(a.Free/a.Rate, maxFullIn)) * time.Second, true
}

// maxFullIn is ten years, in seconds.
const maxFullIn = 10 * 366 * 24 * 3600

// Trouble returns what is wrong if archiving fails.
func (a Archiver) Trouble(now time.Time) (Finding, bool) {
	if !a.Failing() {
		return Finding{}, false
	}
	since := ""
	if b := a.Behind(); !b.IsZero() {
		since = fmt.Sprintf(" since %s (for %s)", b.UTC().Format(time.DateTime+"Z07:00"), ageText(now.Sub(b)))
	}
	f := Finding{
		Level: Problem, What: fmt.Sprintf("archiving fails on %s%s: %s was refused %s ago", a.Node, since, a.LastFailed, ageText(now.Sub(a.FailedAt))),
		Why: "no commit waits for the archive, and no WAL is lost while the primary's disk holds it; what it has not archived cannot be restored, and a failover may leave a gap",
		Run: "see log/postgres.log on " + a.Node + " for the reason; the server tries again by itself",
	}
	if a.Reason != "" {
		f.What += ", because " + a.Reason
		f.Run = "make room in the repository (coterie backup expire, after coterie backup enable --retention with fewer), or have it back as it was; the server tries again by itself, and coterie check backup tells when nothing waits"
	}
	f.What += fmt.Sprintf("; %d segments wait, %s on its disk, which has %s free", a.Waiting, units.Bytes(a.Kept), units.Bytes(a.Free))
	if d, ok := a.FullIn(); ok {
		f.What += fmt.Sprintf(" and is full in %s at the present rate", ageText(d))
		f.Run += "; if it would be too late, coterie backup disable on " + a.Node + " gives that WAL up, and a full backup is due as soon as backups are enabled again"
	}
	return f, true
}

// Facts are what Judge looks at.
type Facts struct {
	Now      time.Time
	Plan     Plan
	Catalog  Catalog
	Archiver *Archiver // nil: the primary did not say
	Lacking  []string  // replicas that could not archive if they took over, with what is missing there
}

// waitingMost is how many segments may wait to be archived before that is a warning, by default 128 MB.
const waitingMost = 8

// Judge returns what a person should know, the last backup and the archive first.
func Judge(f Facts) (out []Finding) {
	if f.Catalog.Problem != "" && len(f.Catalog.Backups) == 0 && len(f.Catalog.WAL) == 0 {
		out = append(out, Finding{
			Problem, fmt.Sprintf("the repository %s cannot be used: %s", f.Plan.Repository, f.Catalog.Problem), "nothing can be restored from it", "coterie backup enable again, on the primary",
		})
		if f.Archiver != nil {
			if x, bad := f.Archiver.Trouble(f.Now); bad {
				out = append(out, x)
			}
		}
		return out
	}
	if o := f.Catalog.Owner; o != "" && o != f.Plan.Group {
		out = append(out, Finding{
			Problem, fmt.Sprintf("the stanza %s in %s is of another group (%s)", f.Plan.Stanza, f.Plan.Repository, o), "two groups must never write to one archive: neither could be restored from it",
			"coterie backup enable --stanza NAME on every replica of this group, the primary first",
		})
	}
	out = append(out, judgeAge(f)...)
	out = append(out, judgeArchiver(f)...)
	out = append(out, judgeHistory(f)...)
	for _, l := range f.Lacking {
		out = append(out, Finding{
			Warning, l, "WAL stays on its disk, and is in no archive, once it is the primary", "coterie backup enable there, with the same repository",
		})
	}
	return out
}

// usable returns the backups that are sound and of the history that ends with the newest timeline.
func (c Catalog) usable() (out []Backup) {
	tli := c.Newest()
	for _, b := range c.Backups {
		if !b.Failed && b.Reaches(tli, c.Histories) {
			out = append(out, b)
		}
	}
	return out
}

// Last returns the newest backup without errors.
func (c Catalog) Last() (b Backup, ok bool) {
	for _, x := range c.Backups {
		if !x.Failed && x.Ended.After(b.Ended) {
			b, ok = x, true
		}
	}
	return b, ok
}

func judgeAge(f Facts) []Finding {
	last, ok := f.Catalog.Last()
	if !ok {
		return []Finding{{Problem, "there is no backup", "without one the archive is of no use", "coterie backup run --type full"}}
	}
	age := f.Now.Sub(last.Ended)
	out := []Finding{{Level: OK, What: fmt.Sprintf("the last backup, %s, ended %s ago", last.Label, ageText(age))}}
	if age > time.Duration(f.Plan.Warn) {
		out[0].Level, out[0].Why, out[0].Run = Warning, fmt.Sprintf("one was expected within %s", ageText(time.Duration(f.Plan.Warn))), "coterie backup run, and see why the schedule does not"
	}
	for _, b := range f.Catalog.Backups {
		if b.Failed {
			out = append(out, Finding{Problem, fmt.Sprintf("the backup %s has pages with wrong checksums", b.Label), "the copy of " + cmp.Or(b.Node, "the primary") + " had them when it was made", "coterie replica seed NAME --verify for each replica, and coterie backup run --type full from a sound one"})
		}
	}
	return out
}

func judgeArchiver(f Facts) []Finding {
	a := f.Archiver
	switch {
	case a == nil:
		return []Finding{{Warning, "the primary does not say how its archiving is", "its agent does not answer, or does not know it", "coterie status"}}
	case !a.On:
		return []Finding{{
			Problem, fmt.Sprintf("the primary %s archives nothing with the command of the backups", a.Node), "archive_mode waits for a restart, or archive_command is another one: no backup can be completed",
			"coterie restart --postgres --pending, then coterie backup enable again on the primary",
		}}
	case a.Failing():
		x, _ := a.Trouble(f.Now)
		return []Finding{x}
	case a.Waiting > waitingMost:
		return []Finding{{Warning, fmt.Sprintf("%d segments wait on %s to be archived", a.Waiting, a.Node), "the archive is behind, and WAL gathers on the primary's disk", "see whether the repository is slow; log/postgres.log there"}}
	}
	what := "nothing was archived yet by " + a.Node
	if a.LastArchived != "" {
		what = fmt.Sprintf("%s archived %s %s ago, %d segments wait", a.Node, a.LastArchived, ageText(f.Now.Sub(a.ArchivedAt)), a.Waiting)
	}
	return []Finding{{Level: OK, What: what}}
}

// judgeHistory says from which point on the archive can be restored.
func judgeHistory(f Facts) []Finding {
	tli, size := f.Catalog.Newest(), int64(0)
	if f.Archiver != nil {
		size = f.Archiver.SegmentSize
		if at := f.Archiver.Timeline; at > tli && f.Archiver.On && f.Archiver.Waiting == 0 {
			return []Finding{{Problem, fmt.Sprintf("the archive has nothing of timeline %d, which the primary writes", at), "what was written since the last failover cannot be restored", "coterie backup run --type full"}}
		}
	}
	usable := f.Catalog.usable()
	if len(usable) == 0 {
		if len(f.Catalog.Backups) == 0 {
			return nil
		}
		return []Finding{{Problem, fmt.Sprintf("no backup can be followed to timeline %d, the newest in the archive", tli), "its history file is missing, or the backups are of another branch", "coterie backup run --type full"}}
	}
	from, gap := firstWhole(f.Catalog, usable, tli, size)
	if from == nil && gap == nil {
		return []Finding{{Problem, "the archive cannot be followed from any backup", "a history file in it is damaged or missing", "coterie backup run --type full"}}
	}
	if from == nil {
		return []Finding{{
			Problem, fmt.Sprintf("the archive lacks %d segments of WAL, from %s to %s, and no backup was made after them", gap.Count, gap.From, gap.To),
			"a failover or a removal took them before they were archived: only what is before them can be restored", "coterie backup run --type full",
		}}
	}
	out := []Finding{{Level: OK, What: fmt.Sprintf("any point from %s (%s) to the last archived segment can be restored", from.Ended.UTC().Format(time.DateTime+"Z07:00"), from.Label)}}
	if gap != nil {
		out = append(out, Finding{Warning, fmt.Sprintf("the archive lacks %d segments of WAL before the backup %s, from %s to %s", gap.Count, from.Label, gap.From, gap.To), "points between the gap and that backup cannot be restored", "nothing: older backups go as new ones come"})
	}
	return out
}

// firstWhole returns the oldest backup from which no WAL is missing up to the newest of the timeline, and the last gap
// before it. Both may be nil.
func firstWhole(c Catalog, usable []Backup, tli uint32, size int64) (from *Backup, gap *Gap) {
	for i := range usable {
		gaps, err := c.Gaps(usable[i], tli, size)
		if err == nil && len(gaps) == 0 {
			return &usable[i], gap
		}
		if len(gaps) > 0 {
			gap = &gaps[len(gaps)-1]
		}
	}
	return nil, gap
}

// ageText returns a duration as people say it.
func ageText(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", max(0, int(d.Seconds())))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}
