package listener

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/listener/hba"
)

// refusedHere are the reasons for which lines are refused here that PostgreSQL takes. Each is a limit that the
// documentation tells (docs/connecting.md), and names what to write instead. No other line may be refused.
var refusedHere = regexp.MustCompile(`^(` + strings.Join([]string{
	`address "[^"]*": not of the form address/bits`, `address "[^"]*": host names are not supported here`, `mask "[^"]*" does not fit`, `address "[^"]*": a zone`,
	`method [a-z0-9]+ cannot be checked by the listener`, `ident cannot be checked over the network`, `option ".*" is not supported here`, `an option may not be a list`,
	`include\w* is not supported: put the rules of that file here`, `(database|user) @.*: (lists in files are not supported here|include|the list is empty|a NUL byte|.* is not a file)`, `@ in place of`, `(database|user) .*: regular expression`, `(database|user) /.*: the regular expression`,
	`(database|user) (@.*: )?(database|user) /.*: `, `empty (database|user) name`, `database .*: roles have members, databases have none`, `(database|user) @.*: empty (database|user) name`,
	`a quote is not closed`, `(database|user) @.*: a quote is not closed`, `(database|user) @.*: a NUL byte`, `the (connection type|address|mask|method) may not come from a file`,
}, "|") + `)`)

var lineOfError = regexp.MustCompile(`(?m)^line (\d+): (.*)$`)

// refusals returns the reasons in an error of package hba by line.
func refusals(t *testing.T, err error) map[int]string {
	t.Helper()
	out := make(map[int]string)
	if err == nil {
		return out
	}
	for _, m := range lineOfError.FindAllStringSubmatch(err.Error(), -1) {
		n, _ := strconv.Atoi(m[1])
		out[n] = m[2]
	}
	if len(out) == 0 && !strings.Contains(err.Error(), "no rule") {
		t.Errorf("the error names no line: %v", err)
	}
	return out
}

// blank returns the text without the lines that begin at those numbers, and without what continues them; the others
// keep their numbers.
func blank(text string, begin map[int]string) string {
	lines := strings.Split(text, "\n")
	for n := range begin {
		for i := n - 1; i < len(lines); i++ {
			more := strings.HasSuffix(strings.TrimRight(lines[i], "\r"), `\`)
			lines[i] = ""
			if !more {
				break
			}
		}
	}
	return strings.Join(lines, "\n")
}

// near returns the lines of a text about that number.
func near(text string, line int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, line-2):min(len(lines), line+5)], "\n")
}

// compared counts what a comparison has seen.
type compared struct {
	files, rules, refusedThere, refusedHere int
	reasons                                 map[string]int // of lines that are refused here only
}

// compare holds that a file with this text is read here as the server reads it. A line that the server refuses is
// refused here, a line that is taken here is the same rule there. It returns the text without the lines that one of
// them refuses.
func (c *compared) compare(t *testing.T, x *rulesServer, text string) string {
	t.Helper()
	there := x.view(text)
	_, err := hba.ParseFile(x.file)
	here := refusals(t, err)
	if strings.Contains(text, "\x00") {
		if !slices.Contains(slices.Collect(maps.Values(here)), "a NUL byte") {
			t.Errorf("a NUL byte is not refused: %v\n%q", err, text)
		}
		return c.compare(t, x, strings.ReplaceAll(text, "\x00", " "))
	}
	c.files++
	theirs := make(map[int]string)
	taken := make(map[int]bool)
	for _, v := range there {
		if v.rule == "" {
			theirs[v.line] = cmp.Or(v.problem, "it does not say why")
			c.refusedThere++
			if unsupported := !x.tls && strings.HasSuffix(v.problem, "not supported by this build"); here[v.line] == "" && !unsupported {
				t.Errorf("line %d is refused by PostgreSQL, and is taken here: %s\n%q", v.line, v.problem, near(text, v.line))
			}
		} else {
			taken[v.line] = true
		}
	}
	for n, why := range here {
		if theirs[n] != "" {
			continue
		}
		c.refusedHere++
		m := refusedHere.FindString(why)
		if m == "" {
			t.Errorf("line %d is refused here, and PostgreSQL takes it: %s\n%q", n, why, near(text, n))
		}
		c.reasons[strings.Join(strings.Fields(regexp.MustCompile(`".*"|[@/].*`).ReplaceAllString(m, "…")), " ")]++
	}
	maps.Copy(here, theirs)
	text = blank(text, here)
	c.same(t, x, text)
	return text
}

// same holds that both take the whole text, as the same rules.
func (c *compared) same(t *testing.T, x *rulesServer, text string) {
	t.Helper()
	there := x.view(text)
	rules, err := hba.ParseFile(x.file)
	if (err != nil) != (len(there) == 0) { // PostgreSQL refuses a file without rules
		t.Errorf("%d rules in PostgreSQL, and here: %v\n%q", len(there), err, text)
		return
	}
	var a, b []string
	for _, v := range there {
		a = append(a, fmt.Sprintf("%d: %s%s", v.line, v.rule, v.problem))
	}
	for _, r := range rules {
		b = append(b, fmt.Sprintf("%d: %s", r.Line, written(r)))
	}
	c.rules += len(b)
	if !slices.Equal(a, b) {
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				n, _, _ := strings.Cut(b[i], ":")
				line, _ := strconv.Atoi(n)
				t.Errorf("the rules differ at %q\nPostgreSQL:\t%s\nhere:\t\t%s", near(text, line), a[i], b[i])
				return
			}
		}
		t.Errorf("%d rules in PostgreSQL, %d here\n%q", len(a), len(b), text)
	}
}

// TestRealServerReadsRules compares what is read of a file of rules here with pg_hba_file_rules of every PostgreSQL
// that is installed: rules, their lines, and which lines are refused.
func TestRealServerReadsRules(t *testing.T) {
	const seed = 28
	files := 300
	if longTests() {
		files = 10_000
	}
	forEachPostgres(t, func(t *testing.T, x *rulesServer) {
		c := compared{reasons: make(map[string]int)}
		g := rulesGrammar{r: rand.New(rand.NewPCG(seed, uint64(x.major))), dir: strings.TrimSuffix(x.file, "/hba.conf")}
		for _, text := range hardFiles(&g) {
			c.compare(t, x, text)
		}
		for range files {
			c.compare(t, x, g.text())
			if t.Failed() && os.Getenv("ALL") == "" {
				t.FailNow()
			}
		}
		for reason, n := range c.reasons {
			t.Logf("%d times %s", n, reason)
		}
		t.Logf("%d files: %d rules are the same, %d lines are refused by PostgreSQL and here, %d here only", c.files, c.rules, c.refusedThere, c.refusedHere)
		if c.rules < 2*files || c.refusedThere < files/2 {
			t.Error("too few cases")
		}
	})
}

// hardFiles are whole files that chance would not write.
func hardFiles(g *rulesGrammar) []string {
	many := rulesGrammar{r: g.r, dir: g.dir, plain: true}
	var long strings.Builder
	for range 3000 {
		long.WriteString(many.rule() + "\n")
	}
	return []string{
		"", "\n", "# nothing\n", "\\", "\\\n", "\r\n", "local all all trust", "local all all trust\\", "local all all trust\r", "\ufefflocal all all trust\n", long.String(),
		"local all all \\\n\n\ntrust\n", "local all all \\\\\n\ntrust\nlocal all all trust", "local all all trust \x00\nlocal all all reject\n", "local all all trust\x00", strings.Repeat("# x\\\n", 2000) + "local all all trust\nlocal all all reject\n",
		"local all all" + strings.Repeat(" ", 100_000) + "trust\n", "local " + strings.Repeat("alice,", 20_000) + "bob all trust\n", "local @nothing all all trust\n", "local all @nothing all trust\n", "local @nothing @nothing local all all trust\n",
		"local all all @nothing trust\n", "local all " + strings.Repeat("x", 255) + " trust\n", "local all " + strings.Repeat("x", 256) + " trust\n",
	}
}
