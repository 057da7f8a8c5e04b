package listener

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/listener/hba"
)

// TestPatternsAsInPostgreSQL compares patterns of rules with the operator ~ of a real PostgreSQL, in a database whose
// encoding and collation are those in which PostgreSQL reads pg_hba.conf. A pattern that is accepted here means the
// same there for every name; PostgreSQL may accept more.
func TestPatternsAsInPostgreSQL(t *testing.T) {
	g := newGroup(t, func(*Config) {})
	s := g.servers["a"]
	s.sql(t, "drop database if exists patterns", "create database patterns template template0 encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C'")
	conn, err := s.connect(t.Context(), "patterns")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	const seed, patterns, names = 20, 3000, 12
	r := rand.New(rand.NewPCG(seed, 0))
	pick := func(from []string) string { return from[r.IntN(len(from))] }
	atoms := []string{
		"a", "b", "A", "_", "-", "0", "9", " ", "é", "\x85", ".", ".", "^", "$", "|", "(", "(", ")", ")", "(?:", "[ab]", "[^a]", "[]a]", "[a-]", "[^]]", "[é]", "[[:alpha:]0]", "[^[:space:]]",
		"[[:punct:]]", "[[:print:]]", "[[:graph:]-]", "[[:word:]]", `[\d_]`, `[\]a]`, `\d`, `\s`, `\w`, `\D`, `\S`, `\W`, `\.`, `\$`, `\_`, "*", "+", "?", "*?", "{2}", "{1,2}", "{0}", "{1,}", "{1,2}?",
		"}", "]", "{", `\b`, `\y`, `\A`, `\Z`, `\1`, "(?i)", "[a", "[b-a]", "[a-b-c]", "**", "{256}", "***=", "[[:cntrl:]]", "[\\w-a]", "\xff", "[\x80-\xff]", "[^\x85]", "#", ",",
	}
	letters := []string{"a", "b", "A", "B", "_", "-", "0", "9", " ", "\n", "\v", "é", "\x85", "\xff", "]", ".", "$", "}"}
	accepted := 0
	for range patterns {
		var pattern string
		for range 1 + r.IntN(6) {
			pattern += pick(atoms)
		}
		list := []string{""}
		for range names {
			name := ""
			for range 1 + r.IntN(4) {
				name += pick(letters)
			}
			list = append(list, name)
		}
		rules, err := hba.Parse(strings.NewReader(`host all "/` + pattern + "\" all trust\n"))
		if err != nil {
			continue
		}
		accepted++
		var there []bool
		if err := conn.QueryRow(t.Context(), `select array(select n ~ $2 from unnest($1::text[]) with ordinality u(n, i) order by i)`, list, pattern).Scan(&there); err != nil {
			t.Fatalf("%q is accepted here, and PostgreSQL says %v", pattern, err)
		}
		for i, name := range list {
			if _, here := hba.Match(rules, hba.Login{User: name}); here != there[i] {
				t.Errorf("%q on %q: %v here, %v in PostgreSQL", pattern, name, here, there[i])
			}
		}
	}
	t.Logf("%d patterns of %d are accepted", accepted, patterns)
	if accepted < patterns/5 {
		t.Errorf("only %d patterns of %d are accepted", accepted, patterns)
	}
}
