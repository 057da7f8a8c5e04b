package scalar

import (
	"database/sql/driver"
	"math"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// nasty are values at the edges of what a query may pass.
var nasty = []driver.Value{
	nil, "", " ", "a", "é", "abc def", "%", "[", "[a-", "[^]", "_", `\`, "%%%%a", "0", "1.5", "-7", "1e400", "x1", "year", "dw", "ns", "int", "dec2", "dec38", "time", "time7", "date", "float",
	"2026-03-05 09:07:03.123000+00", "2026-03-05", "0001-01-01", "9999-12-31 23:59:59", "N2", "P", "X8", "D5", "#,##0.00;(0);zero", "'q", "yyyy", "G", "E3", "0.###", ",,", "C99", "0d9c6d8e-7e47-4b8a-8a4e-0123456789ab",
	strings.Repeat("ab%", 300), strings.Repeat("x", 60<<10), "concat", "concat_ws", "LIKE", "ILIKE", "~~", "LIKE NOCASE", []byte("bytes"),
	int64(0), int64(1), int64(-1), int64(2), int64(5), int64(7), int64(38), int64(120), int64(109), int64(8000), int64(math.MaxInt64), int64(math.MinInt64), int64(math.MaxInt32) + 1,
	0.0, 1.5, -2.345, 1e15, 1e300, math.NaN(), math.Inf(1), math.Inf(-1), math.SmallestNonzeroFloat64,
}

// TestNoFunctionPanics calls every function with values at the edges. An error is correct; a panic is not, nor a result
// of a kind that the engine does not take, or a long one.
func TestNoFunctionPanics(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for name, f := range Functions {
		t.Run(name, func(t *testing.T) {
			args := []driver.Value{}
			defer func() {
				if x := recover(); x != nil {
					t.Fatalf("%v: %v", args, x)
				}
			}()
			for range 1000 {
				n := int(f.Args)
				if n < 0 {
					n = 2 + r.IntN(2)
				}
				args = args[:0]
				for range n {
					args = append(args, nasty[r.IntN(len(nasty))])
				}
				v, err := f.F(args)
				if err != nil {
					continue
				}
				switch x := v.(type) {
				case nil, int64, float64:
				case string:
					if len(x) > 2*maxResult || !utf8.ValidString(x) {
						t.Fatalf("%.200v: %d bytes", args, len(x))
					}
				default:
					t.Fatalf("%.200v: %T", args, v)
				}
			}
		})
	}
}

// TestLikeMatchesAsARegularExpression compares LIKE with a regular expression of the same meaning.
func TestLikeMatchesAsARegularExpression(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	parts := []struct{ like, regexp string }{{"%", ".*"}, {"_", "."}, {"a", "a"}, {"b", "b"}, {"[ab]", "[ab]"}, {"[^a]", "[^a]"}, {"[a-c]", "[a-c]"}, {"[%]", "%"}, {"[_]", "_"}}
	for range 20000 {
		var pattern, expression, text string
		for range r.IntN(6) {
			p := parts[r.IntN(len(parts))]
			pattern, expression = pattern+p.like, expression+p.regexp
		}
		for range r.IntN(7) {
			text += string("abcd%_"[r.IntN(6)])
		}
		got, err := like([]driver.Value{text, pattern, nil, "LIKE"})
		if err != nil {
			t.Fatal(pattern, err)
		}
		if want := regexp.MustCompile("^(?s:" + expression + ")$").MatchString(text); got != bit(want) {
			t.Errorf("%q LIKE %q: %v, want %v", text, pattern, got, want)
		}
	}
}

// TestPatternsTakeNoLong: nothing interrupts a function, so patterns are refused whose work on a text takes long. Some
// of these took ten seconds for a thousand characters.
func TestPatternsTakeNoLong(t *testing.T) {
	class := "[^" + strings.Repeat("q", 980) + "]"
	for _, c := range []struct {
		function, pattern string
		length            int
		refused           bool
	}{
		{"co_patindex", "%x%" + class + "y%", 2000, true},
		{"co_patindex", "%x%" + class + "y%", 300, false},
		{"co_patindex", "%x%y%", 4000, false},
		{"regexp", "(" + strings.Repeat("x?", 100) + "){1000}y", 1000, true},
		{"regexp", "(" + strings.Repeat("x?", 490) + "){1000}y", 0, true},
		{"regexp", "((x{1,10}){1,10}){1,10}y", maxResult, true},
		{"regexp", "((x{1,10}){1,10}){1,10}y", 4000, false},
		{"regexp", "^[a-z0-9_]+x(y|z)*$", maxResult, false},
		{"regexp", strings.Repeat("(", 499) + "x" + strings.Repeat(")", 499), 4000, false},
	} {
		pattern, subject := driver.Value(c.pattern), driver.Value(strings.Repeat("x", c.length))
		var err error
		took := time.Hour
		for i := 0; i < 3 && took > 5*time.Second; i++ { // the machine may have been busy
			began := time.Now()
			_, err = Functions[c.function].F([]driver.Value{pattern, subject})
			took = min(took, time.Since(began))
		}
		if took > 5*time.Second || (err != nil) != c.refused {
			t.Errorf("%s of %.30q and %d bytes: %v after %v", c.function, c.pattern, c.length, err, took)
		}
	}
}
