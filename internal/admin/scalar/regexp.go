package scalar

import (
	"database/sql/driver"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

// Limits of regular expressions. Nothing interrupts a match, and maxWritten bounds its memory.
const (
	maxSteps   = 20_000_000 // of an expression in a text: about a second
	maxWritten = 10_000     // of an expression
)

// regularExpression implements ~ and ~*: whether the expression a[0] matches somewhere in a[1].
func regularExpression(a []driver.Value) (driver.Value, error) {
	pattern, subject := text(a[0]), text(a[1])
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("a regular expression of %d bytes; at most %d are taken", len(pattern), maxPattern)
	}
	if strings.Contains(pattern, `\b`) || strings.Contains(pattern, `\B`) { // a backspace there, and a word's boundary here
		return nil, fmt.Errorf(`regular expression: \b and \B are not supported`)
	}
	pattern = "(?s)" + pattern // a dot is any character, as in PostgreSQL
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("regular expression: %w", err)
	}
	if n := steps(tree); n > maxWritten || n*(len(subject)+1) > maxSteps {
		return nil, fmt.Errorf("regular expression: %d steps in a text of %d bytes: both are too long", n, len(subject))
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("regular expression: %w", err)
	}
	return bit(re.MatchString(subject)), nil
}

// steps returns about how many steps an expression has once its repetitions are written out. A match may do all of them
// at each character of a text.
func steps(e *syntax.Regexp) int {
	n := 1
	if e.Op == syntax.OpLiteral {
		n = len(e.Rune)
	}
	for _, sub := range e.Sub {
		n += steps(sub)
	}
	if e.Op == syntax.OpRepeat {
		n *= max(e.Min, e.Max, 1)
	}
	return n
}
