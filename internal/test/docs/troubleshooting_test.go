package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	troubleshooting = "docs/troubleshooting.md"
	exitCodes       = "docs/reference/exit-codes.md"
)

// spoken are the functions whose texts a person meets in coterie status and its relatives.
var spoken = map[string][]string{
	"internal/ag/availability/problems.go":     {"problems", "memberProblems"},
	"internal/ag/availability/availability.go": {"whyNotWritable", "automatic"},
	"internal/ag/availability/forecast.go":     {"Failure", "judge", "hinders", "forecast"},
	"internal/node/quorum/roster.go":           {"compareRoster"},
	"internal/node/endorsement/service.go":     {"Problem"},
	"internal/node/clientport/addresses.go":    {"unserved"},
	"internal/node/clientport/files.go":        {"closedRules", "readRules", "effectOnCertificates"},
	"internal/lib/storage/findings.go":         {"Findings"},
	"internal/cli/groupcmd/render.go":          {"short"},
	"internal/node/webhooks/receiver.go":       {"problem"},
}

var verb = regexp.MustCompile(`%[-+#0-9.]*[a-zA-Z]`)

// TestEveryFindingHasAnEntry holds that docs/troubleshooting.md has each finding of coterie status, by pieceOf.
func TestEveryFindingHasAnEntry(t *testing.T) {
	page := strings.ReplaceAll(pages(t)[troubleshooting], "`", "")
	checked := 0
	for file, functions := range spoken {
		for _, text := range textsOf(t, file, functions) {
			piece := pieceOf(text)
			if len(piece) < 8 {
				continue
			}
			checked++
			if !strings.Contains(page, piece) {
				t.Errorf("%s says %q, and %s has no entry with %q", file, text, troubleshooting, piece)
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d findings found: the functions have other names now", checked)
	}
}

// pieceOf returns the longest piece of a text between the names that are put in, to its first semicolon, colon or
// bracket.
func pieceOf(text string) string {
	piece := slices.MaxFunc(verb.Split(text, -1), func(a, b string) int { return len(strings.TrimSpace(a)) - len(strings.TrimSpace(b)) })
	piece, _, _ = strings.Cut(strings.Trim(piece, " \n.,:;\""), ";")
	piece, _, _ = strings.Cut(piece, " (")
	piece, _, _ = strings.Cut(piece, ": ")
	return piece
}

// textsOf returns what these functions say: the format of a problem that is added, and what is returned.
func textsOf(t *testing.T, file string, functions []string) (found []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range parsed.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !slices.Contains(functions, f.Name.Name) {
			continue
		}
		adds := 0
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if name, ok := call.Fun.(*ast.Ident); ok && name.Name == "add" {
					adds++
					format := call.Args[map[string]int{"problems": 3, "memberProblems": 2, "Findings": 1}[f.Name.Name]]
					found = append(found, literals(format)...)
					return false
				}
			}
			return true
		})
		if adds == 0 {
			found = append(found, literals(f)...)
		} else if f.Name.Name == "problems" {
			found = append(found, "this node is no member of the group any more: what it shows is what it saw last")
		}
	}
	return found
}

func literals(n ast.Node) (found []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil && strings.Count(text, " ") > 1 {
				found = append(found, text)
			}
		}
		return true
	})
	return found
}

// TestEveryStatusWordHasAnEntry holds that docs/troubleshooting.md has each state that a member or a group can be in.
func TestEveryStatusWordHasAnEntry(t *testing.T) {
	page, checked := pages(t)[troubleshooting], 0
	constants := regexp.MustCompile(`(?m)^\t\w+ +(?:Role|SyncState|JoinState|Outcome|Level) += "([A-Za-z_ ]+)"`)
	for _, file := range []string{"internal/ag/group.go", "internal/ag/availability/availability.go"} {
		for _, m := range constants.FindAllStringSubmatch(source(t, file), -1) {
			checked++
			if !strings.Contains(page, "`"+m[1]+"`") {
				t.Errorf("%s has the state %q, and %s has no entry for it", file, m[1], troubleshooting)
			}
		}
	}
	operational := regexp.MustCompile(`return code\{\d, "([A-Z_]+)"\}|"([A-Z]+_HEALTHY)"`)
	for _, m := range operational.FindAllStringSubmatch(source(t, "internal/admin/catalog/states.go"), -1) {
		checked++
		if word := m[1] + m[2]; !strings.Contains(page, "`"+word+"`") {
			t.Errorf("the views show %s, and %s has no entry for it", word, troubleshooting)
		}
	}
	for _, word := range wordsOfTheTable(t) {
		checked++
		if !strings.Contains(page, "`"+word+"`") {
			t.Errorf("the table of coterie status shows %q, and %s has no entry for it", word, troubleshooting)
		}
	}
	if checked < 48 {
		t.Errorf("only %d states found", checked)
	}
}

// wordsOfTheTable returns the words in the columns STATE, SYNC, FAILOVER TO IT and NOTE of coterie status.
func wordsOfTheTable(t *testing.T) (words []string) {
	t.Helper()
	add := func(pattern, text string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			word, _, _ := strings.Cut(m[1], ",")
			words = append(words, word)
		}
	}
	_, table, _ := strings.Cut(source(t, "internal/cli/groupcmd/render.go"), "\nfunc state(")
	add(`return "([A-Za-z?][^"]*)"`, table)
	add(`append\(notes, "([^"]+)"\)`, table)
	for _, m := range regexp.MustCompile(`job\{"([a-z-]+)"`).FindAllStringSubmatch(source(t, "internal/agent/act.go"), -1) {
		if !strings.Contains(table, `case "`+m[1]+`":`) {
			t.Errorf("the table of coterie status has no word for the action %s", m[1])
		}
	}
	return words
}

// TestEverySQLSTATEHasAnEntry holds that each SQLSTATE of the listener and of the console is explained where a person
// looks for it.
func TestEverySQLSTATEHasAnEntry(t *testing.T) {
	explained := pages(t)[troubleshooting] + pages(t)[exitCodes]
	state := regexp.MustCompile(`"([0-9A-Z]\d[0-9A-Z]{3})"`)
	none := []string{"00000", "10000", "25006"} // success, a number of milliseconds, and a state of PostgreSQL that the listener knows
	found := map[string]bool{}
	for file, text := range sources(t) {
		if strings.HasSuffix(file, "_test.go") || !regexp.MustCompile(`^internal/(listener|admin|lib/pgwire|lib/fail)/`).MatchString(file) {
			continue
		}
		for _, m := range state.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(none, m[1]) && !found[m[1]] && !strings.Contains(explained, "`"+m[1]+"`") {
				t.Errorf("%s answers %s, which neither %s nor %s explains", file, m[1], troubleshooting, exitCodes)
			}
			found[m[1]] = true
		}
	}
	if len(found) < 25 {
		t.Errorf("only %d SQLSTATEs found", len(found))
	}
}
