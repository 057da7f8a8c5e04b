package hba

import (
	"strings"
	"testing"
)

// TestPatterns holds the meaning of patterns, and that those which mean something else in PostgreSQL are refused with
// what to write instead. TestPatternsAsInPostgreSQL in package listener asks PostgreSQL itself.
func TestPatterns(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, matches, not, refused string
	}{
		{pattern: "^admin.$", matches: "admin\n", not: "admin"},
		{pattern: "^ab$", matches: "ab", not: "ab\n"},
		{pattern: "^é$", matches: "é", not: "e"},
		{pattern: "^..$", matches: "é", not: "éé"}, // a character is a byte
		{pattern: `^\s$`, matches: "\v", not: "\u00a0"},
		{pattern: `^\d{2,3}$`, matches: "123", not: "1"},
		{pattern: `^[]a-c\]-]$`, matches: "-", not: "d"},
		{pattern: `^[^[:alpha:]]$`, matches: "\n", not: "x"},
		{pattern: "^(?:a|)$", matches: "", not: "b"},
		{pattern: "a}", matches: "a}", not: "a"},
		{pattern: `\badmin`, refused: "backspace in PostgreSQL"},
		{pattern: `a\B`, refused: `write \\`},
		{pattern: `\Aa`, refused: "write ^"},
		{pattern: `a\Z`, refused: "write $"},
		{pattern: `\ma`, refused: "[^[:word:]]"},
		{pattern: `\x41b`, refused: "write the character itself"},
		{pattern: `\u0041`, refused: "write the character itself"},
		{pattern: `(a)\1`, refused: "references back"},
		{pattern: "(?i)admin", refused: "write both cases"},
		{pattern: "a(?=b)", refused: "a second rule"},
		{pattern: "***=a", refused: "begins with ***"},
		{pattern: "***:a", refused: "begins with ***"},
		{pattern: "a**", refused: `write \*`},
		{pattern: "^*a", refused: `write \*`},
		{pattern: "a{256}", refused: "from 0 to 255"},
		{pattern: "a{2,1}", refused: "no number of repetitions"},
		{pattern: "a{,2}", refused: `write \{`},
		{pattern: "[[.hyphen.]]", refused: "write the characters"},
		{pattern: "[[:<:]]a", refused: "write the characters"},
		{pattern: "[[:cntrl:]]", refused: "write the characters"},
		{pattern: "[a-c-e]", refused: "end of the brackets"},
		{pattern: `[\W]`, refused: "in brackets is not supported"},
		{pattern: "[a", refused: "not closed"},
		{pattern: "a)", refused: "without ("},
		{pattern: `a\`, refused: `ends with \`},
	} {
		p, err := compile(tt.pattern)
		if tt.refused != "" {
			if err == nil || !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("%s: %v", tt.pattern, err)
			}
			continue
		}
		if err != nil || !p.Matches(tt.matches) || p.Matches(tt.not) {
			t.Errorf("%s: %v, or it does not match %q, or it matches %q", tt.pattern, err, tt.matches, tt.not)
		}
	}
}
