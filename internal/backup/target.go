package backup

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Target is the point up to which WAL is replayed. The zero value is the end of the archive. At most one field is set.
type Target struct {
	Time time.Time
	LSN  string
	Name string // of a restore point
}

// Latest reports whether the target is the end of the archive.
func (t Target) Latest() bool { return t == Target{} }

// String returns the target for people.
func (t Target) String() string {
	switch {
	case !t.Time.IsZero():
		return "the time " + t.Time.Format("2006-01-02 15:04:05.999999Z07:00")
	case t.LSN != "":
		return "the position " + t.LSN
	case t.Name != "":
		return "the restore point " + t.Name
	}
	return "the end of the archive"
}

// timeForms are how a time may be written. One without a zone is of the local one.
var timeForms = []string{
	time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999Z07", "2006-01-02 15:04:05.999999999", "2006-01-02T15:04:05.999999999", "2006-01-02 15:04",
}

var pointName = regexp.MustCompile(`^[^\s'"\\][^\n\r'"\\]{0,62}$`)

// ParseTarget reads the TIME, LSN, NAME or latest of a command line.
func ParseTarget(text string, zone *time.Location) (Target, error) {
	if text == "latest" {
		return Target{}, nil
	}
	if _, err := ParseLSN(text); err == nil {
		return Target{LSN: strings.ToUpper(text)}, nil
	}
	for _, form := range timeForms {
		if at, err := time.ParseInLocation(form, text, zone); err == nil {
			return Target{Time: at}, nil
		}
	}
	if looksLikeTime(text) || !pointName.MatchString(text) {
		return Target{}, fmt.Errorf("%q is no target: give a time as '2026-11-25 12:00:00+00', a position as 0/3000050, the name of a restore point, or latest", text)
	}
	return Target{Name: text}, nil
}

// likeTime matches the beginning of a year and a month, a time of day, or a day in another order. None has a letter
// before it.
var likeTime = regexp.MustCompile(`^\d{4}-|^[\d\s./-]*\d:\d\d|^\d{1,2}[./-]\d{1,2}[./-]\d{2}`)

// looksLikeTime reports whether somebody meant a time, which must not be taken for a name when it is mistyped: that no
// restore point has the name is known only when everything is restored.
func looksLikeTime(text string) bool { return likeTime.MatchString(text) }

// skew is how far the clocks of the machines that wrote the WAL may be ahead of this one's.
const skew = time.Minute

// Reachable returns an error if the target is a time that has not come: PostgreSQL would say so only when everything is
// restored.
func (t Target) Reachable(now time.Time) error {
	if t.Time.After(now.Add(skew)) {
		return fmt.Errorf("%s has not come: it is %s now; give the time with its zone, as '2026-11-25 12:00:00+00', or latest for all that there is", t, now.In(t.Time.Location()).Format("2006-01-02 15:04:05Z07:00"))
	}
	return nil
}

// Choose returns the backup and the timeline with which the target is reached.
func (c Catalog) Choose(t Target, label string) (Backup, uint32, error) {
	tli := c.Newest()
	if len(c.Backups) == 0 {
		return Backup{}, 0, errors.New("the repository has no backup of it")
	}
	var fit []Backup
	for _, b := range c.Backups {
		if b.Reaches(tli, c.Histories) && (label == "" || b.Label == label) && b.before(t) {
			fit = append(fit, b)
		}
	}
	switch {
	case len(fit) == 0 && label != "":
		return Backup{}, 0, fmt.Errorf("there is no backup %s that ends before %s in the history of timeline %d; coterie backup list shows the backups", label, t, tli)
	case len(fit) == 0:
		return Backup{}, 0, fmt.Errorf("no backup ends before %s in the history of timeline %d: the first point that can be restored is %s, the end of %s",
			t, tli, c.Backups[0].Ended.UTC().Format(time.DateTime+"Z07:00"), c.Backups[0].Label)
	case t.Name != "": // when the point was made is not known: the oldest backup is before it if any is
		return fit[0], tli, nil
	}
	return fit[len(fit)-1], tli, nil
}

// before reports whether the backup is consistent before the target, as far as that can be known.
func (b Backup) before(t Target) bool {
	switch {
	case !t.Time.IsZero():
		return b.Ended.Before(t.Time)
	case t.LSN != "":
		at, err1 := ParseLSN(t.LSN)
		end, err2 := ParseLSN(b.End)
		return err1 == nil && err2 == nil && end <= at
	}
	return true
}
