package scalar

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

var times = map[string]Function{
	"co_time":         {3, try(2, toTime), false},
	"co_date":         {2, try(1, toDate), false},
	"co_clock":        {3, try(2, toClock), false},
	"co_elapsed":      {2, strict(elapsed), false},
	"co_isdate":       {1, isDate, false},
	"co_datediff":     {3, strict(func(a []driver.Value) (driver.Value, error) { return dateDiff(a, math.MaxInt32) }), false},
	"co_datediff_big": {3, strict(func(a []driver.Value) (driver.Value, error) { return dateDiff(a, math.MaxInt64) }), false},
	"co_datetrunc":    {2, strict(dateTrunc), false},
	"co_dateadd":      {3, strict(dateAdd), false},
	"co_datepart":     {2, strict(datePart), false},
	"co_datename":     {2, strict(dateName), false},
	"co_year":         {1, strict(func(a []driver.Value) (driver.Value, error) { return datePart([]driver.Value{"year", a[0]}) }), false},
	"co_month":        {1, strict(func(a []driver.Value) (driver.Value, error) { return datePart([]driver.Value{"month", a[0]}) }), false},
	"co_day":          {1, strict(func(a []driver.Value) (driver.Value, error) { return datePart([]driver.Value{"day", a[0]}) }), false},
	"co_eomonth":      {-1, strict(endOfMonth), false},
	"co_datefromparts": {3, strict(func(a []driver.Value) (driver.Value, error) {
		y, m, d := integer(a[0]), integer(a[1]), integer(a[2])
		t := time.Date(int(y), time.Month(m), int(d), 0, 0, 0, 0, time.UTC)
		if y < 1 || y > 9999 || int64(t.Month()) != m || int64(t.Day()) != d {
			return nil, fmt.Errorf("cannot construct a date of %d, %d, %d", y, m, d)
		}
		return t.Format(dateLayout), nil
	}), false},
	"co_format": {-1, format, false},
}

// parts are the names and abbreviations of the parts of a time.
var parts = func() map[string]string {
	out := map[string]string{}
	for part, names := range map[string][]string{
		"year": {"yy", "yyyy"}, "quarter": {"qq", "q"}, "month": {"mm", "m"}, "dayofyear": {"dy", "y"}, "day": {"dd", "d"}, "week": {"wk", "ww"},
		"weekday": {"dw", "w"}, "hour": {"hh"}, "minute": {"mi", "n"}, "second": {"ss", "s"}, "millisecond": {"ms"}, "microsecond": {"mcs"}, "nanosecond": {"ns"},
		"iso_week": {"isowk", "isoww"},
	} {
		out[part] = part
		for _, n := range names {
			out[n] = part
		}
	}
	return out
}()

func partOf(v driver.Value) (string, error) {
	part, ok := parts[text(v)]
	if !ok {
		return "", fmt.Errorf("unit %.40q is not known", text(v))
	}
	return part, nil
}

// timeOf returns a value as a time: one of the engine, of ISO 8601, or a text in a form that T-SQL reads.
func timeOf(v driver.Value) (time.Time, error) {
	t, ok := parseTime(v)
	if s, isText := v.(string); !ok && isText {
		r, err := written(s)
		switch {
		case errors.Is(err, errNotHere):
			return t, err
		case r.short:
			return t, fmt.Errorf("the year of %.40q %w, as T-SQL and PostgreSQL take it for another one: write it with four digits", s, errNotHere)
		}
		t, ok = r.t, err == nil
	}
	if !ok {
		return t, fmt.Errorf("conversion failed when converting %.40q to a time: write it as 2026-11-21 12:00:00", text(v))
	}
	return t, nil
}

// epoch is the zero of numbers that become times, which are days.
var epoch = time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)

// toTime converts to a time: value, rounding (1: to minutes; 10 and more: to so many digits of a second; 100 more: of
// T-SQL, in which a time keeps its offset from UTC), whether errors are NULL.
func toTime(a []driver.Value) (driver.Value, error) {
	var t time.Time
	var err error
	rounding := integer(a[1])
	if rounding >= 100 {
		if err = inUTC(a[0]); err != nil {
			return nil, err
		}
		rounding -= 100
	}
	switch x := a[0].(type) {
	case int64, float64:
		days, _ := real(x)
		if !(math.Abs(days) < 4e6) {
			return nil, fmt.Errorf("the number %s is out of range as a time, in days from 1900 on", text(x))
		}
		t = epoch.AddDate(0, 0, int(math.Floor(days))).Add(time.Duration((days - math.Floor(days)) * float64(24*time.Hour)))
	case string:
		if strings.TrimSpace(x) == "" {
			return epoch.Format(TimeLayout), nil // as in T-SQL
		}
		t, err = timeOf(x)
	default:
		t, err = timeOf(x)
	}
	if err != nil {
		return nil, err
	}
	first, last := 1, 9999
	switch {
	case rounding == 1:
		t, first, last = t.Round(time.Minute), 1900, 2078
	case rounding == 2:
		first = 1753
	case rounding >= 10 && rounding < 16:
		t = t.Round(time.Duration(math.Pow10(int(19 - rounding))))
	}
	if t.Year() < first || t.Year() > last {
		return nil, fmt.Errorf("the time %.40q is out of range: the years of its type are %d to %d", text(a[0]), first, last)
	}
	return t.Format(TimeLayout), nil
}

func toDate(a []driver.Value) (driver.Value, error) {
	if text(a[0]) == "" {
		return "1900-01-01", nil
	}
	if err := inUTC(a[0]); err != nil {
		return nil, err
	}
	t, err := timeOf(a[0])
	if err != nil {
		return nil, err
	}
	return t.Format(dateLayout), nil
}

// toClock returns the time of day with so many digits of its second's fraction.
func toClock(a []driver.Value) (driver.Value, error) {
	if s, isText := a[0].(string); isText && strings.TrimSpace(s) == "" {
		a = []driver.Value{"00:00", a[1]} // as in T-SQL
	}
	if err := inUTC(a[0]); err != nil {
		return nil, err
	}
	t, err := timeOf(a[0])
	if err != nil {
		return nil, err
	}
	digits := int(min(max(integer(a[1]), 0), 7))
	t = t.Round(time.Duration(math.Pow10(9 - digits)))
	s := t.Format("15:04:05")
	if digits > 0 {
		s += fmt.Sprintf(".%09d", t.Nanosecond())[:digits+1]
	}
	return s, nil
}

func elapsed(a []driver.Value) (driver.Value, error) {
	x, err := timeOf(a[0])
	if err != nil {
		return nil, err
	}
	y, err := timeOf(a[1])
	if err != nil {
		return nil, err
	}
	return x.Sub(y).Seconds(), nil
}

// dateDiff counts the boundaries of a unit between two times, as T-SQL does: from 10:00:59 to 10:01:01 is a minute.
func dateDiff(a []driver.Value, most int64) (driver.Value, error) {
	part, err := partOf(a[0])
	if err != nil {
		return nil, err
	}
	from, err := timeOf(a[1])
	if err != nil {
		return nil, err
	}
	to, err := timeOf(a[2])
	if err != nil {
		return nil, err
	}
	months := func(t time.Time) int64 { return int64(t.Year())*12 + int64(t.Month()) - 1 }
	seconds := func(unit int64) int64 { return floor(to.Unix(), unit) - floor(from.Unix(), unit) }
	var n int64
	switch part {
	case "year":
		n = int64(to.Year() - from.Year())
	case "quarter":
		n = floor(months(to), 3) - floor(months(from), 3)
	case "month":
		n = months(to) - months(from)
	case "day", "dayofyear", "weekday":
		n = seconds(86400)
	case "week":
		n = floor(floor(to.Unix(), 86400)+4, 7) - floor(floor(from.Unix(), 86400)+4, 7) // weeks begin on Sunday
	case "hour":
		n = seconds(3600)
	case "minute":
		n = seconds(60)
	case "second":
		n = seconds(1)
	case "millisecond":
		n = to.UnixMilli() - from.UnixMilli()
	case "microsecond":
		n = to.UnixMicro() - from.UnixMicro()
	case "nanosecond":
		d := to.Sub(from)
		if d == math.MaxInt64 || d == math.MinInt64 {
			return nil, errTooFar
		}
		n = int64(d)
	default:
		return nil, fmt.Errorf("unit %s is not supported by DATEDIFF", part)
	}
	if n > most || n < -most-1 {
		return nil, errTooFar
	}
	return n, nil
}

var errTooFar = errors.New("the datediff function resulted in an overflow: use DATEDIFF_BIG, or a larger unit")

func floor(n, unit int64) int64 {
	q := n / unit
	if n%unit < 0 {
		q--
	}
	return q
}

func dateAdd(a []driver.Value) (driver.Value, error) {
	part, err := partOf(a[0])
	if err != nil {
		return nil, err
	}
	t, err := timeOf(a[2])
	if err != nil {
		return nil, err
	}
	n := integer(a[1])
	if n > math.MaxInt32 || n < math.MinInt32 {
		return nil, fmt.Errorf("DATEADD takes a number of 32 bits, not %d", n)
	}
	if part == "nanosecond" && n%1000 != 0 {
		return nil, fmt.Errorf("DATEADD of %d nanoseconds is not supported: times have whole microseconds", n)
	}
	d := time.Duration(n)
	switch part {
	case "year":
		t = addMonths(t, 12*n)
	case "quarter":
		t = addMonths(t, 3*n)
	case "month":
		t = addMonths(t, n)
	case "day", "dayofyear", "weekday":
		t = t.AddDate(0, 0, int(n))
	case "week":
		t = t.AddDate(0, 0, int(7*n))
	case "hour":
		t = time.Unix(t.Unix()+3600*n, int64(t.Nanosecond())).UTC()
	case "minute":
		t = time.Unix(t.Unix()+60*n, int64(t.Nanosecond())).UTC()
	case "second":
		t = t.Add(d * time.Second)
	case "millisecond":
		t = t.Add(d * time.Millisecond)
	case "microsecond":
		t = t.Add(d * time.Microsecond)
	case "nanosecond":
		t = t.Add(d)
	default:
		return nil, fmt.Errorf("unit %s is not supported by DATEADD", part)
	}
	if t.Year() < 1 || t.Year() > 9999 {
		return nil, fmt.Errorf("adding a value to a time caused an overflow")
	}
	return t.Format(TimeLayout), nil
}

// addMonths adds months. A day that the month does not have becomes its last one.
func addMonths(t time.Time, n int64) time.Time {
	first := time.Date(t.Year(), t.Month()+time.Month(n), 1, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
	last := first.AddDate(0, 1, -1).Day()
	return first.AddDate(0, 0, min(t.Day(), last)-1)
}

func datePart(a []driver.Value) (driver.Value, error) {
	part, err := partOf(a[0])
	if err != nil {
		return nil, err
	}
	t, err := timeOf(a[1])
	if err != nil {
		return nil, err
	}
	_, iso := t.ISOWeek()
	jan1 := time.Date(t.Year(), 1, 1, 0, 0, 0, 0, time.UTC)
	n := map[string]int{
		"year": t.Year(), "quarter": (int(t.Month())-1)/3 + 1, "month": int(t.Month()), "dayofyear": t.YearDay(), "day": t.Day(),
		"week": (t.YearDay()-1+int(jan1.Weekday()))/7 + 1, "weekday": int(t.Weekday()) + 1, "hour": t.Hour(), "minute": t.Minute(), "second": t.Second(),
		"millisecond": t.Nanosecond() / 1e6, "microsecond": t.Nanosecond() / 1e3, "nanosecond": t.Nanosecond(), "iso_week": iso,
	}[part]
	return int64(n), nil
}

// dateTrunc is DATETRUNC, in a session whose weeks begin on Sunday.
func dateTrunc(a []driver.Value) (driver.Value, error) {
	part, err := partOf(a[0])
	if err != nil {
		return nil, err
	}
	t, err := timeOf(a[1])
	if err != nil {
		return nil, err
	}
	y, m, d := t.Date()
	switch part {
	case "year":
		m, d = 1, 1
	case "quarter":
		m, d = m-(m-1)%3, 1
	case "month":
		d = 1
	case "week":
		d -= int(t.Weekday())
	case "iso_week":
		d -= int(t.Weekday()+6) % 7
	case "day", "dayofyear":
	case "hour", "minute", "second", "millisecond", "microsecond":
		unit := map[string]time.Duration{"hour": time.Hour, "minute": time.Minute, "second": time.Second, "millisecond": time.Millisecond, "microsecond": time.Microsecond}[part]
		return t.Truncate(unit).Format(TimeLayout), nil
	default:
		return nil, fmt.Errorf("unit %s is not supported by DATETRUNC", part)
	}
	if t = time.Date(y, m, d, 0, 0, 0, 0, time.UTC); t.Year() < 1 {
		return nil, fmt.Errorf("truncating the time caused an overflow")
	}
	return t.Format(TimeLayout), nil
}

func dateName(a []driver.Value) (driver.Value, error) {
	part, err := partOf(a[0])
	if err != nil {
		return nil, err
	}
	t, err := timeOf(a[1])
	if err != nil {
		return nil, err
	}
	switch part {
	case "month":
		return t.Month().String(), nil
	case "weekday":
		return t.Weekday().String(), nil
	}
	v, err := datePart(a)
	return text(v), err
}

func endOfMonth(a []driver.Value) (driver.Value, error) {
	t, err := timeOf(a[0])
	if err != nil {
		return nil, err
	}
	if len(a) > 1 {
		n := integer(a[1])
		if n > 120000 || n < -120000 {
			return nil, fmt.Errorf("adding a value to a time caused an overflow")
		}
		t = addMonths(t, n)
	}
	t = time.Date(t.Year(), t.Month()+1, 0, 0, 0, 0, 0, time.UTC)
	if t.Year() < 1 || t.Year() > 9999 {
		return nil, fmt.Errorf("adding a value to a time caused an overflow")
	}
	return t.Format(dateLayout), nil
}
