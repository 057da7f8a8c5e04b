package termtext

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestPrintable checks that no control or format character of a name reaches a terminal, and that other text stays as
// it is.
func TestPrintable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                               "",
		"größer, 日本, \t tab\nline":       "größer, 日本, \t tab\nline",
		"u\x1b]0;pwned\x07\x1b[31mRED":   `u\x1b]0;pwned\x07\x1b[31mRED`,
		"back\bspace\rreturn\x7fdelete":  `back\x08space\x0dreturn\x7fdelete`,
		"C1 \u009b31m, half \xe2\x82":    `C1 \x9b31m, half \xe2\x82`,
		"a replacement character \ufffd": "a replacement character \ufffd",
		"\u202eyhtlaeh\u202c \u2066x":    `\u202eyhtlaeh\u202c \u2066x`,
		"sep\u2028arated\u2029":          `sep\u2028arated\u2029`,
		"soft\u00adhyphen, \U000e0041":   `soft\xadhyphen, \U000e0041`,
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := Cell("a\tb\nc\u2028"); got != `a\tb\nc\u2028` {
		t.Errorf("a cell: %q", got)
	}
}

type name string

// TestLinef checks that values stay in their line and their column, and that numbers are formatted as ever.
func TestLinef(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	Linef(&b, "%s\t%-8s|%*d %.1f %v %v %[7]q %[8]v %v\n", name("n1\nn2\tPRIMARY"), "ab", 4, 7, 1.25, 90*time.Second, "x\n", errors.New("two\nlines"), nil)
	if want := `n1\nn2\tPRIMARY` + "\tab      |   7 1.2 1m30s x\\n " + `"x\n" two\nlines <nil>` + "\n"; b.String() != want {
		t.Errorf("%q\nwant %q", b.String(), want)
	}
}
