package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	link     = regexp.MustCompile(`\]\(([^)]+)\)`)
	linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// TestLinksLeadSomewhere holds that each link of a document names a file that exists, and a heading that the file has.
func TestLinksLeadSomewhere(t *testing.T) {
	all := pages(t)
	checked := 0
	for page, text := range all {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			to, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(to, "://") {
				continue
			}
			checked++
			target := page
			if to != "" {
				target = filepath.Join(filepath.Dir(page), to)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: link to %s: %v", page, m[1], err)
				continue
			}
			if text, ok := all[target]; ok && anchor != "" && !anchors(text)[anchor] {
				t.Errorf("%s: link to %s: the page has no such heading", page, m[1])
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d links found: the pattern that finds them is wrong", checked)
	}
}

// anchors returns the names under which the headings of a page can be reached.
func anchors(text string) map[string]bool {
	found, times := map[string]bool{}, map[string]int{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, linkText.ReplaceAllString(strings.TrimSpace(m[1]), "$1"))
		if n := times[name]; n > 0 {
			found[fmt.Sprintf("%s-%d", name, n)] = true
		} else {
			found[name] = true
		}
		times[name]++
	}
	return found
}

// TestAnchors holds that a heading is reached as GitHub does it.
func TestAnchors(t *testing.T) {
	got := anchors("# What's new?\n## A `code`, and [a link](x.md)\n## Twice\n## Twice\n```\n# no heading\n```\n")
	for _, want := range []string{"whats-new", "a-code-and-a-link", "twice", "twice-1"} {
		if !got[want] {
			t.Errorf("no %s in %v", want, got)
		}
	}
	if len(got) != 4 {
		t.Errorf("found %v", got)
	}
}
