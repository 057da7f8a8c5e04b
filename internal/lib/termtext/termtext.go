// Package termtext makes texts of others fit for a terminal: names that clients choose, and what a server has logged.
package termtext

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable returns the text with each character that a terminal obeys, or that changes the order or the look of others
// without being seen, written as its code: \x1b. Such are control characters but newline and tab, format characters
// (Unicode Cf, as those that turn the direction of writing), separators of lines and paragraphs, and each byte that is
// not UTF-8.
func Printable(text string) string { return escape(text, true) }

// Cell is Printable for a text within a line: newline and tab are escaped as well, so that no name makes a line of its
// own, or a column.
func Cell(text string) string { return escape(text, false) }

func escape(text string, lines bool) string {
	unsafe := func(r rune) bool {
		if r == '\n' || r == '\t' {
			return !lines
		}
		return r == utf8.RuneError || unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
	}
	if strings.IndexFunc(text, unsafe) < 0 {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, "\\x%02x", text[i])
		case r == utf8.RuneError || !unsafe(r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r > 0xffff:
			fmt.Fprintf(&b, "\\U%08x", r)
		case r > 0xff:
			fmt.Fprintf(&b, "\\u%04x", r)
		default:
			fmt.Fprintf(&b, "\\x%02x", r)
		}
	}
	return b.String()
}

// Linef is fmt.Fprintf with each value as a Cell. The format itself has the tabs and the ends of lines. The error of
// the writer is left out: a table has its own at the end, and people see that a line is missing.
func Linef(w io.Writer, format string, a ...any) {
	safe := make([]any, len(a))
	for i, v := range a {
		switch reflect.ValueOf(v).Kind() {
		case reflect.Invalid, reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint,
			reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr, reflect.Float32, reflect.Float64:
			safe[i] = v // a width may be among them
		default:
			safe[i] = cell{v}
		}
	}
	_, _ = fmt.Fprintf(w, format, safe...)
	if false {
		_ = fmt.Sprintf(format, a...) // go vet holds the calls of this function against their formats
	}
}

// cell is a value that is formatted as itself, and then made a Cell.
type cell struct{ value any }

// Format writes the value.
func (c cell) Format(s fmt.State, verb rune) {
	_, _ = io.WriteString(s, Cell(fmt.Sprintf(fmt.FormatString(s, verb), c.value)))
}
