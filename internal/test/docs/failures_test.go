package docs

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestExitCodes holds that docs/reference/exit-codes.md has the kinds and the numbered messages of package fail, each
// with its exit code, its SQLSTATE and its kind.
func TestExitCodes(t *testing.T) {
	text := pages(t)["docs/reference/exit-codes.md"]
	kinds := map[fail.Kind]bool{fail.Ordinary: true, fail.Usage: true, fail.Unhealthy: true, fail.Refused: true}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d) \| (\w+) \| (\w{5}) \|`).FindAllStringSubmatch(text, -1) {
		k := fail.Kind(m[2])
		if code := strconv.Itoa(k.ExitCode()); !kinds[k] || code != m[1] || k.SQLState() != m[3] {
			t.Errorf("%s has exit code %s and SQLSTATE %s, or is no kind; the page says %s and %s", k, code, k.SQLState(), m[1], m[3])
		}
		delete(kinds, k)
	}
	for k := range kinds {
		t.Errorf("the page lacks the kind %s", k)
	}
	listed := map[int]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| (\d{3,5}) \| (\w{5}) \| (\w+) \|`).FindAllStringSubmatch(text, -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		listed[n] = true
		if e := fail.Numberedf(n, "text"); e.SQLState() != m[2] || string(e.Kind) != m[3] {
			t.Errorf("message %d has the SQLSTATE %s and is %s; the page says %s and %s", n, e.SQLState(), e.Kind, m[2], m[3])
		}
	}
	for n := range 65536 {
		if known := fail.StateOf(n) != fail.Ordinary.SQLState(); known != listed[n] {
			t.Errorf("message %d is known: %v; the page lists it: %v", n, known, listed[n])
		}
	}
}

// TestStatesOfKinds holds that docs/reference/exit-codes.md has the beginnings of SQLSTATEs that tell a kind.
func TestStatesOfKinds(t *testing.T) {
	listed := map[string]fail.Kind{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|\n]*…[^|\n]*) \| (usage|unhealthy|refused) \|$`).FindAllStringSubmatch(pages(t)["docs/reference/exit-codes.md"], -1) {
		for begin := range strings.SplitSeq(row[1], ", ") {
			listed[strings.TrimSuffix(begin, "…")] = fail.Kind(row[2])
		}
	}
	kindOf := func(state string) fail.Kind { // as the page says
		for n := len(state); n > 0; n-- {
			if k, ok := listed[state[:n]]; ok {
				return k
			}
		}
		return fail.Ordinary
	}
	const digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	states := []string{"55006", "55P02"}
	for _, a := range digits {
		for _, b := range digits {
			for _, c := range digits {
				states = append(states, string([]rune{a, b, c, '0', '1'}))
			}
		}
	}
	for _, state := range states {
		if in, page := fail.KindOfState(state), kindOf(state); in != page {
			t.Errorf("%s is %s; the page says %s", state, in, page)
		}
	}
}

// TestStatefulLibrariesAreListed holds that docs/continuity.md names each extension whose use ends a session in a
// failover. The page has the procedural languages by their proper names.
func TestStatefulLibrariesAreListed(t *testing.T) {
	m := regexp.MustCompile("stateful = strings.Fields\\(`([^`]+)`\\)").FindStringSubmatch(source(t, "internal/listener/continuity/library.go"))
	if m == nil {
		t.Fatal("the list of libraries is not where it was")
	}
	page := pages(t)["docs/continuity.md"]
	for _, name := range strings.Fields(m[1]) {
		language := "PL/" + strings.TrimRight(strings.TrimPrefix(name, "pl"), "0123456789")
		if !strings.Contains(page, name) && !strings.Contains(strings.ToLower(page), strings.ToLower(language)) {
			t.Errorf("a session that has used %s ends in a failover, and docs/continuity.md does not say so", name)
		}
	}
}
