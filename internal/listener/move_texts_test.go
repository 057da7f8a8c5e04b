package listener

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/listener/sessionstate"
)

// TestTextsThatSetAreSeen: a text by which PostgreSQL sets a setting that no view lists shows its name, or keeps the
// session from moving, in any spelling, encoding and in pieces of any length. PostgreSQL says which texts those are.
func TestTextsThatSetAreSeen(t *testing.T) {
	g := movingGroup(t, nil)
	c, err := g.servers["a"].connect(t.Context(), "postgres")
	must(t, err)
	defer func() { _ = c.Close(t.Context()) }()
	rounds := 20_000
	if testing.Short() {
		rounds = 2000
	}
	seed := uint64(time.Now().UnixNano())
	r := spelling{rand.New(rand.NewPCG(seed, 2)), ""}
	set := 0
	for i := range rounds {
		encoding := r.one("UTF8", "UTF8", "SJIS", "GBK", "BIG5", "EUC_JP", "UHC", "JOHAB")
		r.letter = map[string]string{"UTF8": "ソ", "SJIS": "\x83\x5c", "GBK": "\x81\x5c", "BIG5": "\xa5\x5c", "EUC_JP": "\xa5\xbd", "UHC": "\xb0\xa1", "JOHAB": "\x88\x61"}[encoding]
		conforming := r.one("on", "on", "off")
		name := fmt.Sprintf("my.x%d", i)
		sql := r.text(name)
		must(t, c.PgConn().Exec(t.Context(), fmt.Sprintf("rollback; set client_encoding = %s; set standard_conforming_strings = %s; set backslash_quote = on", encoding, conforming)).Close())
		_ = c.PgConn().Exec(t.Context(), sql).Close() // nil: it is a text of PostgreSQL
		found, err := c.PgConn().Exec(t.Context(), fmt.Sprintf("rollback; select coalesce(current_setting('%s', true), '')", name)).ReadAll()
		must(t, err)
		if string(found[1].Rows[0][0]) == "" {
			continue
		}
		set++
		var whole, pieces sessionstate.Tracker
		whole.Text([]byte(sql+"\x00"), true, true)
		for at, end := 0, 0; at < len(sql); at = end {
			end = min(at+1+r.IntN(1+r.IntN(len(sql))), len(sql))
			pieces.Text([]byte(sql)[at:end], at == 0, end == len(sql))
		}
		for how, tr := range map[string]*sessionstate.Tracker{"whole": &whole, "in pieces": &pieces} {
			if tr.Why() == "" && !slices.ContainsFunc(tr.Names(), func(n string) bool { return strings.EqualFold(n, name) }) {
				t.Fatalf("seed %d, %s, standard_conforming_strings = %s, %s: %q sets %s, and shows %q", seed, encoding, conforming, how, sql, name, tr.Names())
			}
		}
	}
	if set < rounds/10 {
		t.Errorf("only %d of %d set something", set, rounds)
	}
	t.Logf("%d of %d set something", set, rounds)
}

// spelling makes texts in odd spellings.
type spelling struct {
	*rand.Rand
	letter string // of two bytes or more, which may end as a letter of ASCII does
}

func (r spelling) one(of ...string) string { return of[r.IntN(len(of))] }

// gap returns what may stand between two words. least is what it has at least.
func (r spelling) gap(least string) string {
	for b := least; ; {
		switch r.IntN(9) {
		case 0:
			b += r.one(" ", "\t", "\n", "\r", "\r\n", "\f")
		case 1:
			b += " /*" + r.one("", "c", "'", `"`, "/* d */", " -- ", "*", "/**/", r.letter, ";", "(", "$$") + "*/"
		case 2:
			b += " --" + r.one("", "c", "'", `"`, "/*", "--", " -- ", r.letter, ";", "x(", "*/", "$$") + r.one("\n", "\r")
		case 3:
			b += strings.Repeat(" ", r.IntN(300))
		default:
			return b
		}
	}
}

// cased returns a word in random case.
func (r spelling) cased(word string) string {
	if r.IntN(3) > 0 {
		return word
	}
	b := []byte(word)
	for i := range b {
		if b[i] >= 'a' && b[i] <= 'z' && r.IntN(2) == 0 {
			b[i] -= 32
		}
	}
	return string(b)
}

// name returns a name, in quotes and escapes or not.
func (r spelling) name(word string) string {
	switch r.IntN(8) {
	case 0:
		return `"` + word + `"`
	case 1:
		return fmt.Sprintf(`U&"%s\%04x%s"`, word[:1], word[1], word[2:])
	case 2:
		return fmt.Sprintf(`u&"%s!%04x%s"%s%s%s'!'`, word[:1], word[1], word[2:], r.gap(""), r.cased("uescape"), r.gap(" "))
	}
	return r.cased(word)
}

// literal returns a literal with that text.
func (r spelling) literal(text string) string {
	switch r.IntN(9) {
	case 0:
		return fmt.Sprintf(`E'%s\x%02x%s'`, text[:1], text[1], text[2:])
	case 1:
		return "$$" + text + "$$"
	case 2:
		return "$q$" + text + "$q$"
	case 3:
		return fmt.Sprintf("'%s'\n'%s'", text[:2], text[2:])
	case 4:
		return fmt.Sprintf(`U&'%s\%04x%s'`, text[:1], text[1], text[2:])
	}
	return "'" + text + "'"
}

// item returns something harmless of a list of columns.
func (r spelling) item() string {
	return r.one("1", "'--'", `1 as "--"`, "'/*'", `1 as "a""b"`, "';'", "'set'", "'"+r.letter+"'", `'a\\'`, `E'\\'`, `E'\''`, `1 as "`+r.letter+`"`, "'('", "$$ ' $$", "2 - -1", "now()", "3/ 1", `1 as U&"a"`, "'it''s'")
}

// text returns a text that may set the setting of that name.
func (r spelling) text(name string) string {
	first, second, _ := strings.Cut(name, ".")
	before := r.one("", "", "", "select 1;", ";", "select "+r.item()+";", "begin;", "select "+r.item()+";"+r.gap("")+"commit;") + r.gap("")
	after := r.one("", "", ";", "; select 1", " -- c")
	value := r.one("1", "'v'", "on", "word", "'a', 'b'")
	switch r.IntN(5) {
	case 0, 1:
		scope := r.one("", "", r.gap(" ")+r.cased("session"), r.gap(" ")+r.cased("local"))
		dotted := r.name(first) + r.gap("") + "." + r.gap("") + r.name(second)
		return before + r.cased("set") + scope + r.gap(" ") + dotted + r.gap(" ") + r.one("=", "to ") + r.gap("") + value + after
	case 2:
		body := r.one("set "+name+" = 1;", "perform set_config"+r.gap("")+"("+r.literal(name)+", 'v', false);", "if true then set/**/"+name+" to 1; end if;")
		return before + r.cased("do") + r.gap(" ") + "$d$ begin " + body + " end $d$" + after
	}
	items := ""
	for range r.IntN(3) {
		items += r.item() + r.gap("") + "," + r.gap("")
	}
	function := r.one("", "", "pg_catalog"+r.gap("")+"."+r.gap("")) + r.name("set_config")
	arguments := r.gap("") + r.literal(name) + r.gap("") + "," + r.gap("") + "'v'" + r.gap("") + ", false"
	return before + r.cased("select") + r.gap(" ") + items + function + r.gap("") + "(" + arguments + r.gap("") + ")" + after
}
