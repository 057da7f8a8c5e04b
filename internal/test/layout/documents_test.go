package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// history are documents that stay as they were written: decisions, notes of measurements, results, and what changed.
// The texts of mutants.md are in the code.
var history = []string{"docs/adr/", "docs/internals/notes/", "docs/results/", "docs/mutants.md", "CHANGELOG.md", "internal/"}

// generated marks a page that a test writes from the code.
const generated = "; do not edit -->"

var (
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	quoted    = regexp.MustCompile("`[^`]*`|\\*[^*]+\\*")
	item      = regexp.MustCompile(`^\s*(?:[-*]|\d+\.) `)
)

// TestDocuments holds the rules of CONTRIBUTING.md ("Words") that a program can check, for the documents that a reader
// follows today. A cell of a table may define a word: "What the quorum has agreed on".
func TestDocuments(t *testing.T) {
	checked := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && name != ".github" && (strings.HasPrefix(name, ".") || name == "bin" || name == "dist") {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(name) != ".md" || isHistory(name) || strings.Contains(name, "testdata/") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		checked++
		if strings.Contains(string(text), generated) {
			return nil // generated: its short texts are those of screens and grammars
		}
		for _, said := range sayings(string(text)) {
			if phrase, instead := wrong(said); phrase != "" {
				t.Errorf("%s: %q; %s", name, phrase, instead)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 40 {
		t.Errorf("only %d documents found", checked)
	}
}

func isHistory(name string) bool {
	for _, h := range history {
		if strings.HasPrefix(name, h) {
			return true
		}
	}
	return false
}

// wrong returns the first phrase that the rules rule out, and what to write instead.
func wrong(said string) (phrase, instead string) {
	for _, w := range words[:3] { // the last is about the comments of functions
		if found := w.phrase.FindString(said); found != "" {
			return found, w.instead
		}
	}
	return "", ""
}

// sayings returns the paragraphs and items of a text, each on one line, and of the cells of tables those that hold a
// sentence rather than a name. Code and words that are quoted are left out.
func sayings(text string) (found []string) {
	var open []string
	end := func() {
		if len(open) > 0 {
			found = append(found, strings.Join(open, " "))
		}
		open = nil
	}
	for line := range strings.Lines(codeBlock.ReplaceAllString(text, "")) {
		if item.MatchString(line) {
			line = strings.ReplaceAll(line, "**", "") // a rule in bold; a line of a form begins so, too
		}
		line = quoted.ReplaceAllString(strings.TrimSpace(line), "x")
		switch {
		case line == "", strings.HasPrefix(line, "#"), strings.HasPrefix(line, "<!--"):
			end()
		case strings.HasPrefix(line, "|"):
			end()
			for cell := range strings.SplitSeq(line, "|") {
				if cell = strings.TrimSpace(cell); !strings.HasPrefix(cell, "What ") {
					found = append(found, cell)
				}
			}
		case item.MatchString(line):
			end()
			open = []string{item.ReplaceAllString(line, "")}
		default:
			open = append(open, line)
		}
	}
	end()
	return found
}

// TestSayings holds that the rules see paragraphs, items and cells, and no code.
func TestSayings(t *testing.T) {
	for text, bad := range map[string]bool{
		"A line\nof two. Who asks is answered.\n":               true,
		"- One.\n- What is there is kept.\n":                    true,
		"7. **Who asks is answered**, also late.\n":             true,
		"| a | whoever asks |\n":                                true,
		"| a | What the quorum has agreed on. |\n":              false,
		"# Who asks\n\nWho asks? What is there?\n":              false,
		"```\nWho asks is answered.\n```\n":                     false,
		"Not *whoever*, and not `What is there is kept.`\n":     false,
		"One ends.\n\nThe thing that is there is kept by it.\n": false,
	} {
		found := false
		for _, said := range sayings(text) {
			phrase, _ := wrong(said)
			found = found || phrase != ""
		}
		if found != bad {
			t.Errorf("%q: found %t", text, found)
		}
	}
}
