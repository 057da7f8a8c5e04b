package experiment

import (
	"fmt"
	"strconv"

	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
)

// interval returns the interval of a comparison in words.
func interval(c method.Comparison) string {
	return fmt.Sprintf("%s to %s", report.Number(c.Low), report.Number(c.High))
}

// verdict returns the result of a comparison for a cell of a table.
func verdict(c method.Comparison) string {
	if c.ClientBound() {
		return "client-bound"
	}
	return string(c.Verdict)
}

// inWords returns the ratio of a comparison for an answer.
func inWords(c method.Comparison) string {
	switch c.Verdict {
	case method.Withheld:
		return fmt.Sprintf("%s (no verdict: %s)", report.Number(c.Ratio), c.Why)
	case method.NoDifference:
		return fmt.Sprintf("%s (%s: no difference shown)", report.Number(c.Ratio), interval(c))
	case method.Faster, method.Slower:
	}
	return fmt.Sprintf("%s (%s)", report.Number(c.Ratio), interval(c))
}

// share returns the ratio of a comparison for an answer, in percent.
func share(c method.Comparison) string {
	percent := func(v float64) string { return report.Number(100 * v) }
	text := fmt.Sprintf("%s %% of the time", percent(c.Ratio))
	switch c.Verdict {
	case method.Withheld:
		return fmt.Sprintf("%s (no verdict: %s)", text, c.Why)
	case method.NoDifference:
		return fmt.Sprintf("%s (%s to %s: no difference shown)", text, percent(c.Low), percent(c.High))
	case method.Faster, method.Slower:
	}
	return fmt.Sprintf("%s (%s to %s)", text, percent(c.Low), percent(c.High))
}

// thousands formats a number with separators: 20,000.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// rowsWord returns a number of rows in words.
func rowsWord(n int) string {
	if n == 1 {
		return "one row"
	}
	return thousands(n) + " rows"
}

// ratioOf returns the ratio of two published figures.
func ratioOf(f report.Figures, key, over, under string) (float64, bool) {
	o, ok1 := f.Value(key, over).(float64)
	u, ok2 := f.Value(key, under).(float64)
	if !ok1 || !ok2 || u == 0 {
		return 0, false
	}
	return o / u, true
}

// rangeOf returns the smallest and the largest value of a published column.
func rangeOf(f report.Figures, column string) (low, high float64) {
	for i, row := range f.Rows {
		v, _ := f.Value(row[0], column).(float64)
		if i == 0 {
			low, high = v, v
		}
		low, high = min(low, v), max(high, v)
	}
	return low, high
}

// averageOf returns the mean of a published column.
func averageOf(f report.Figures, column string) float64 {
	sum := 0.0
	for _, row := range f.Rows {
		v, _ := f.Value(row[0], column).(float64)
		sum += v
	}
	return sum / float64(max(len(f.Rows), 1))
}
