package scalar

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// errNotHere is the error of a text that SQL Server may take for a time and this package does not: it is never NULL,
// and no answer of ISDATE.
var errNotHere = errors.New("is not supported in the console")

// form is a form in which T-SQL reads a date and a time of day, in us_english. Its groups are named.
type form struct {
	pattern *regexp.Regexp
	clocked bool // it has a time of day already
}

const clock = `(?P<hour>\d{1,2})(?::(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<fraction>\d{1,9}))?)?)?(?: ?(?P<half>[AP]M))?`

// forms are the forms that are read. A date may have a time of day behind it, unless it has one already.
var forms = func() (out []form) {
	month := `(?P<name>JAN(?:UARY)?|FEB(?:RUARY)?|MAR(?:CH)?|APR(?:IL)?|MAY|JUNE?|JULY?|AUG(?:UST)?|SEP(?:TEMBER)?|OCT(?:OBER)?|NOV(?:EMBER)?|DEC(?:EMBER)?)`
	day, number, year := `(?P<day>\d{1,2})`, `(?P<month>\d{1,2})`, `(?P<year>\d{4}|\d{2})`
	for _, date := range []string{
		`(?P<year>\d{4})(?P<sign>[-/.])` + number + `(?P<again>[-/.])` + day, number + `(?P<sign>[-/.])` + day + `(?P<again>[-/.])` + year,
		`(?P<year>\d{4}|\d{2})(?P<month>\d{2})(?P<day>\d{2})`, month + ` ` + day + `,? ` + year, day + ` ` + month + `,? ` + year, day + `-` + month + `-` + year,
	} {
		out = append(out, form{regexp.MustCompile(`^` + date + `(?: ` + clock + `)?$`), false})
	}
	for _, whole := range []string{
		`(?P<year>\d{4})`, month + `,? (?P<year>\d{4})`, clock,
		`(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})T(?P<hour>\d{2}):(?P<minute>\d{2}):(?P<second>\d{2})(?:\.(?P<fraction>\d{1,9}))?Z?`,
	} {
		out = append(out, form{regexp.MustCompile(`^` + whole + `$`), true})
	}
	return out
}()

var blanks = regexp.MustCompile(` {2,}`)

// reading is what a text is as a time.
type reading struct {
	t      time.Time
	digits int  // of the second's fraction
	short  bool // the year has two digits, which T-SQL and PostgreSQL take for another century
}

// written reads a text as T-SQL does in the United States. Texts that T-SQL refuses are errors; so are those of which
// it is not known here, with errNotHere.
func written(text string) (reading, error) {
	s := blanks.ReplaceAllString(strings.ToUpper(strings.Trim(text, " ")), " ")
	if s == "" || len(s) > 60 {
		return reading{}, errNoTime
	}
	for _, f := range forms {
		m := f.pattern.FindStringSubmatch(s)
		if m == nil {
			continue
		}
		fields := map[string]string{}
		for i, name := range f.pattern.SubexpNames() {
			if name != "" && m[i] != "" {
				fields[name] = m[i]
			}
		}
		if fields["hour"] != "" && fields["minute"] == "" && fields["half"] == "" {
			continue // a number alone
		}
		return fieldsOf(fields)
	}
	if surelyNone(s) {
		return reading{}, errNoTime
	}
	return reading{}, fmt.Errorf("the time %.60q %w: write it as 2026-11-21 12:00:00", text, errNotHere)
}

var errNoTime = errors.New("no time")

// fieldsOf returns the time of the fields of a form. The first of January 1900 stands for fields that it lacks.
func fieldsOf(fields map[string]string) (reading, error) {
	number := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(fields[name]); err == nil {
			return n
		}
		return otherwise
	}
	r := reading{digits: len(fields["fraction"])}
	year, month, day := number("year", 1900), number("month", 1), number("day", 1)
	if name := fields["name"]; name != "" {
		month = 1 + slices.Index(strings.Fields("JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"), name[:3])
	}
	if len(fields["year"]) == 2 {
		r.short = year >= 50 && year < 70
		if year += 2000; year >= 2050 {
			year -= 100
		}
	}
	hour, minute, second := number("hour", 0), number("minute", 0), number("second", 0)
	switch half := fields["half"]; {
	case half == "AM" && hour > 12, half == "PM" && hour == 0:
		return reading{}, errNoTime
	case half == "AM" && hour == 12:
		hour = 0
	case half == "PM" && hour < 12:
		hour += 12
	}
	nanoseconds, _ := strconv.Atoi((fields["fraction"] + "000000000")[:9])
	r.t = time.Date(year, time.Month(month), day, hour, minute, second, nanoseconds, time.UTC)
	if fields["sign"] != fields["again"] || year < 1 || int(r.t.Month()) != month || r.t.Day() != day || r.t.Hour() != hour || r.t.Minute() != minute || r.t.Second() != second {
		return reading{}, errNoTime
	}
	return r, nil
}

var (
	wordsOf = regexp.MustCompile(`[A-Z]+`)
	ofTimes = regexp.MustCompile(`^[A-Z0-9 \t\r\n:/.,+{}'-]+$`)
)

// surelyNone reports whether a text is no time to SQL Server: by a sign or a word that none has, by the number of its
// digits, or as it has none.
func surelyNone(s string) bool {
	if !ofTimes.MatchString(s) || strings.Trim(s, "0123456789") == "" {
		return true
	}
	months := false
	for _, w := range wordsOf.FindAllString(s, -1) {
		month := len(w) > 2 && slices.ContainsFunc(strings.Fields("JANUARY FEBRUARY MARCH APRIL MAY JUNE JULY AUGUST SEPTEMBER OCTOBER NOVEMBER DECEMBER"), func(m string) bool { return strings.HasPrefix(m, w) })
		day := len(w) > 2 && slices.ContainsFunc(strings.Fields("MONDAY TUESDAY WEDNESDAY THURSDAY FRIDAY SATURDAY SUNDAY"), func(d string) bool { return strings.HasPrefix(d, w) })
		if !month && !day && !slices.Contains([]string{"A", "P", "AM", "PM", "T", "Z", "D", "TS"}, w) {
			return true
		}
		months = months || month
	}
	return !strings.ContainsAny(s, "0123456789") && !months
}

// offset is the distance from UTC behind a time of day.
var offset = regexp.MustCompile(`:\d{2}(?:\.\d+)? ?[+-](\d{2}:?\d{2}|\d{1,2})$`)

// inUTC returns the error of a text whose time has another zone than UTC: values have none here, and T-SQL keeps it.
func inUTC(v driver.Value) error {
	s, isText := v.(string)
	if !isText {
		return nil
	}
	if m := offset.FindStringSubmatch(strings.TrimSpace(s)); m != nil && strings.Trim(m[1], "0:") != "" {
		return fmt.Errorf("a time with an offset from UTC, such as %.60q, %w: all times are UTC here", s, errNotHere)
	}
	return nil
}

// isDate is ISDATE: whether a value is a datetime, or a text of one.
func isDate(a []driver.Value) (driver.Value, error) {
	switch x := a[0].(type) {
	case nil:
		return bit(false), nil
	case time.Time:
		return bit(true), nil
	case string:
		if t, err := time.Parse(TimeLayout, x); err == nil { // of a view
			return bit(t.Year() >= 1753), nil
		}
		if inUTC(x) != nil || len(offset.FindString(strings.TrimSpace(x))) > 0 { // a datetime has none
			return bit(false), nil
		}
	}
	r, err := written(text(a[0]))
	if errors.Is(err, errNotHere) {
		return nil, err
	}
	return bit(err == nil && r.t.Year() >= 1753 && r.digits <= 3), nil
}
