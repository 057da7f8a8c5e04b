package layout

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// longest is how many words a sentence may have. CONTRIBUTING.md asks for about 25.
const longest = 32

// forReaders are the pages of those who use a group. Generated pages have the texts of screens and grammars.
var forReaders = []string{"README.md", "SUPPORT.md", "SECURITY.md", "examples/README.md", "docs/*.md", "docs/tutorials/*.md", "docs/how-to/*.md", "docs/releases/*.md"}

// metaphors are words of people that a page says of a program, with the term.
var metaphors = []struct {
	phrase  *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\bhear(s|d)?\b`), "gets, receives, is refused with"},
	{regexp.MustCompile(`(?i)\b(is|are|was|were) told\b`), "gets, receives"},
	{regexp.MustCompile(`(?i)\b(sleeps?|asleep)\b`), "is paused, waits"},
	{regexp.MustCompile(`(?i)\b(of late|for want of|farewell)\b`), "lately, without"},
	{regexp.MustCompile(`(?i)\bnobody (tells|knows|asks)\b`), "name the program"},
	{regexp.MustCompile(`(?i)\b(is|are) not there yet\b`), "is not implemented, does not exist"},
}

// TestSentencesForReaders holds that the pages for users have no sentence that must be read twice: none that is too
// long, and no metaphor.
func TestSentencesForReaders(t *testing.T) {
	read := 0
	for _, pattern := range forReaders {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(paths) == 0 {
			t.Fatal(pattern, err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				t.Fatal(err)
			}
			if isHistory(name) || strings.Contains(string(text), generated) {
				continue // texts of the code
			}
			read++
			checkSentences(t, name, string(text))
		}
	}
	if read < 35 {
		t.Errorf("only %d pages read", read)
	}
}

func checkSentences(t *testing.T, name, text string) {
	t.Helper()
	for _, said := range sayings(text) {
		for _, m := range metaphors {
			if found := m.phrase.FindString(said); found != "" {
				t.Errorf("%s: %q in %q; write: %s", name, found, said, m.instead)
			}
		}
		for _, s := range sentences(said) {
			if n := len(strings.Fields(s)); n > longest {
				t.Errorf("%s: a sentence of %d words, more than %d: %s", name, n, longest, s)
			}
		}
	}
}

var (
	target = regexp.MustCompile(`\]\([^)]*\)`)
	ending = regexp.MustCompile(`[.!?:]["')\]]* +`)
)

// sentences divides a paragraph. A part behind a colon can be read by itself.
func sentences(said string) []string {
	return ending.Split(target.ReplaceAllString(said, "]"), -1)
}

func TestSentences(t *testing.T) {
	got := sentences("One [two](three/four.md#five). Six? Seven: eight, 1.5 s. `x`")
	if want := []string{"One [two]", "Six", "Seven", "eight, 1.5 s", "`x`"}; !slices.Equal(got, want) {
		t.Errorf("%q, not %q", got, want)
	}
}
