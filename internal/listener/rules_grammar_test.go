package listener

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// rulesGrammar writes files of rules at random, most lines right and some wrong. It knows the grammar of pg_hba.conf
// from PostgreSQL's documentation and none of package hba.
type rulesGrammar struct {
	r     *rand.Rand
	dir   string // of the files that lines name
	plain bool   // most lines can be honoured, and match what tests log in as
	older bool   // PostgreSQL before 16: a name that begins with a slash is no regular expression there
}

// The names of roles and databases in rules and logins. Some are words of the grammar.
var (
	oddRoles = []string{
		"alice", "bob", "Bob", "ALICE", "two words", `quo"te`, "all", "sameuser", "replication", "café", "+plus", "@at", "co,mma", "ha#sh", "sta=ff", `back\slash`, "staff", "crew", "Big Team", "samerole", " lead",
		"peer", "nobody here", "tab\tbed", "reject", "dbs",
	}
	oddDatabases = []string{"postgres", "app", "My DB", "all", "sameuser", "samerole", "samegroup", "replication", "alice", "staff", "crew", "Big Team", "café", "+plus", "@at", "co,mma", "absent", "template1", `quo"te`, "ha#sh", "dbs"}
	oddGroups    = []string{"staff", "crew", "Big Team", "alice", "all", "nowhere", "samerole", "dbs"}
)

// listFiles are the files of names, by name. They are those that @ and include can name.
var listFiles = map[string]string{
	"dbs": "app, postgres\n# nothing\n\"My DB\" \"all\"\n", "people": "alice bob\n\tBob,,\r\n\"two words\" +staff\n", "people \\dir": "crew\n", "folded": "ali\\\nce bob\\\r\n Bob\n\"all\" \\", "nothing": "# nobody\n\n",
	"returns": "alice\rbob\r\nBob\r", "nested": "@people @dbs\n", "regular": "/^al \"/^[Bb]ob$\"\n", "open": "alice \"bob\n", "comma": "alice,\n,bob\n", "every": "all sameuser\n", "includes": "include people\n", "includes dir": "include_if_exists absent\nalice\n",
	"words": "include alice bob\ninclude\n", "nul": "alice\x00 bob\nBob\n", "mark": "\ufeffalice\n", "long": strings.Repeat("alice,", 300) + "\n", "rules.conf": "local all all trust\nhost all all 127.0.0.7/32 reject\n", "bad.conf": "local all\n",
}

func (g *rulesGrammar) chance(percent int) bool { return g.r.IntN(100) < percent }

func (g *rulesGrammar) pick(from ...string) string { return from[g.r.IntN(len(from))] }

// quote writes a name, in quotes where it needs them, and sometimes where it does not.
func (g *rulesGrammar) quote(name string) string {
	needs := name == "" || strings.ContainsAny(name, " \t,#\"")
	doubled := strings.ReplaceAll(name, `"`, `""`)
	switch {
	case needs && g.chance(80), g.chance(12):
		return `"` + doubled + `"`
	case needs || g.chance(5): // in part
		at := strings.IndexAny(name+" ", " \t,#\"")
		return strings.ReplaceAll(name[:at], `"`, `""`) + `"` + strings.ReplaceAll(name[at:], `"`, `""`) + `"`
	}
	return name
}

// pattern is a regular expression that some of the names match.
func (g *rulesGrammar) pattern(names []string) string {
	if g.older && g.plain {
		return g.pick(names...)
	}
	name := strings.NewReplacer("+", `\+`, `\`, `\\`).Replace(g.pick(names...))
	return "/" + g.pick("^"+name, name+"$", "^"+name+"$", "^("+name+"|x)$", "^.{3,5}$", "", "^[a-m]", "[[:upper:]]", "[^a-z]", `\s`, `^\w+$`, "^a.*e$", "^é", "caf..$", g.pick("(", "^[", "a{2,1}", "(?i)alice", `\ba`, "[[.a.]]", `(a)\1`))
}

// list writes names of a field, with the commas and blanks between them.
func (g *rulesGrammar) list(one func() string) string {
	text := one()
	for range g.r.IntN(4) * g.r.IntN(2) {
		text += g.pick(",", ",", ",", ", ", ",\t", ",\\\n", ", ,", ",,", " ,") + one()
	}
	if !g.plain && g.chance(1) {
		text += ","
	}
	return text
}

func (g *rulesGrammar) file() string {
	name := g.pick("dbs", "people", "folded", "returns", "comma", "every", "long")
	if !g.plain {
		name = g.pick("dbs", "people", "people \\dir", "folded", "nothing", "returns", "nested", "regular", "open", "comma", "every", "includes", "includes dir", "words", "nul", "mark", "long", "absent", "")
	}
	return g.pick("@"+name, "@"+name, `@"`+name+`"`, `"@`+name+`"`, "@"+g.dir+"/"+name)
}

func (g *rulesGrammar) database() string {
	switch n := g.r.IntN(100); {
	case n < 35:
		return g.pick("all", "all", "all", `"all"`, "ALL", "a\"ll\"", `all""`)
	case n < 60:
		return g.pick("sameuser", "samerole", "samegroup", "replication", `"sameuser"`, `"samerole"`, `"replication"`, "SameUser", "Replication")
	case n < 66:
		return g.file()
	case n < 76:
		return g.quote(g.pattern(oddDatabases))
	case n < 78 && !g.plain:
		return g.pick("+staff", `""`, "+", "@", `"+staff"`)
	}
	return g.quote(g.pick(oddDatabases...))
}

func (g *rulesGrammar) user() string {
	switch n := g.r.IntN(100); {
	case n < 30:
		return g.pick("all", "all", "all", `"all"`, "All", `""all`)
	case n < 48:
		return g.pick("+", "+", "+", "+", "+", `"+"`) + g.quote(g.pick(oddGroups...))
	case n < 54:
		return g.file()
	case n < 64:
		return g.quote(g.pattern(oddRoles))
	case n < 66 && !g.plain:
		return g.pick(`""`, "+", "@", "sameuser", "samerole", strings.Repeat("long", 15+g.r.IntN(100)))
	}
	return g.quote(g.pick(oddRoles...))
}

// address writes the address of a rule, with its mask if that is a field of its own.
func (g *rulesGrammar) address() string {
	four := fmt.Sprintf("127.%d.%d.%d", g.r.IntN(3), g.r.IntN(2), 1+g.r.IntN(4))
	if g.chance(10) {
		four = fmt.Sprintf("%d.%d.%d.%d", g.r.IntN(256), g.r.IntN(256), g.r.IntN(256), g.r.IntN(256))
	}
	six := g.pick("::1", "::", "0:0:0:0:0:0:0:1", "fd00::2", "FE80::", "2001:db8::ffff", "::ffff:127.0.0.1", "::127.0.0.1", "fe80::1", "::ffff:0:0")
	switch n := g.r.IntN(100); {
	case n < 30:
		return g.pick("all", "all", "samehost", "samenet", `"samehost"`, "SAMENET")
	case n < 60:
		return fmt.Sprintf("%s/%d", four, g.bits(32))
	case n < 72:
		return four + g.pick(" ", "\t", "  ") + g.pick("255.0.0.0", "255.255.0.0", "255.255.255.255", "255.255.255.254", "0.0.0.0", "255.255.255.0", "128.0.0.0")
	case n < 85:
		return fmt.Sprintf("%s/%d", six, g.bits(128))
	case n < 90:
		return six + " " + g.pick("ffff::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::", "ffff:ffff::", "fffe::", "FFFF:FFFF:FFFF:FFFF::", "::ffff:255.255.0.0", "ffff::%lo")
	case n < 92 || g.plain:
		return g.quote(fmt.Sprintf("%s/%d", four, g.bits(32)))
	}
	return g.pick(
		"127.1/8", "127/8", "0x7f.0.0.1/32", "2130706433/32", "010.0.0.1/8", "127.0.0.1/08", "127.0.0.1/+8", "127.0.0.1/ 8", `"127.0.0.1/ 8"`, "127.0.0.1/", "127.0.0.1/33", "127.0.0.1/-1", "127.0.0.1/8/9", "::1/129", "::1/8x", "::1%lo/128",
		"fe80::1%lo ffff::", "fe80::1%absent ffff::", "::1%lo ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "127.0.0.1%lo 255.0.0.0", "127.0.0.1", "::1", "127.0.0.1 255.0.255.0", "127.0.0.1 ffff::", "::1 255.0.0.0", "127.0.0.1 255.0.0",
		"127.0.0.1 0xff000000", "localhost", ".example.org", "localhost/8", "example.org 255.0.0.0", "127.0.0.1,127.0.0.2", "127.0.0.1/32,::1/128", `"all"`, `"samenet"`, "ALL", `""`, "/8", "127.0.0.1 255.0.0.0,255.0.0.0",
		"127.0.0.256/8", "1:2:3:4:5:6:7:8:9/8", ":1/128", "::ffff:127.0.0.0/104", "::ffff:127.0.0.1 ::ffff:255.255.255.255", `"127.0.0.1 "/32`, "[::1]/128", "127.0.0.1:5432/32", "0.0.0.0/0", "::/0", "127.0.0.1/8 ", "@dbs",
	)
}

func (g *rulesGrammar) bits(most int) int {
	return []int{0, 8, 16, most / 2, most - 8, most - 2, most - 1, most, most, most, g.r.IntN(most + 1)}[g.r.IntN(11)]
}

func (g *rulesGrammar) method() string {
	if g.plain || g.chance(75) {
		return g.pick("trust", "trust", "trust", "trust", "reject", "reject", "md5", "md5", "md5", "md5", "scram-sha-256", "peer", "cert")
	}
	return g.pick("password", "ident", "ldap", "pam", "gss", "sspi", "radius", "bsd", "oauth", "TRUST", "Md5", `"trust"`, "trust,reject", "trust,", "scram-sha-1", "crypt", "krb5", "", "@words", "trust=1", `t"rus"t`, "reject#", `trust"`)
}

func (g *rulesGrammar) options() string {
	if g.plain && g.chance(90) || g.chance(85) {
		return ""
	}
	return " " + g.pick("clientcert=verify-ca", "clientcert=verify-full", `"clientcert=verify-full"`, "clientcert=verify-ca clientcert=verify-full", "clientcert=verify-full,clientcert=verify-ca", "clientcert=1", "clientcert", "CLIENTCERT=verify-ca",
		"clientcert=", "clientcert=no-verify", "map=m", "map=", "clientname=DN", "clientname=CN", "include_realm=1", "ldapserver=x", "trust", "=", "clientcert=verify-ca=", `clientcert="verify-ca"`, "clientcert = verify-ca", "@dbs")
}

// rule writes one rule, in one line or several.
func (g *rulesGrammar) rule() string {
	kind := g.pick("local", "host", "host", "host", "host", "host", "hostssl", "hostssl", "hostnossl", "hostnossl", "hostnogssenc", "hostgssenc")
	if !g.plain && g.chance(4) {
		kind = g.pick("LOCAL", "Host", `"host"`, `h"ost"`, "hostsll", "tcp", "host,local", "", "hostssl,", "include", "@dbs", "local\v", "\ufeffhost")
	}
	fields := []string{kind, g.list(g.database), g.list(g.user)}
	if kind != "local" {
		fields = append(fields, g.address())
	}
	fields = append(fields, g.method())
	if !g.plain && g.chance(4) {
		at := g.r.IntN(len(fields))
		fields = append(fields[:at], fields[at+1:]...)
	}
	var b strings.Builder
	b.WriteString(g.pick("", "", "", " ", "\t"))
	for i, f := range fields {
		if i > 0 {
			b.WriteString(g.pick(" ", " ", "\t", "   ", " \t ", " \\\n", " \\\r\n\t", "\\\n ", " \\\n\\\n"))
		}
		b.WriteString(f)
	}
	b.WriteString(g.options())
	b.WriteString(g.pick("", "", "", "", " ", "# comment", " # comment, \"quoted", "\t", "#\\\nlocal all all trust"))
	return g.damage(b.String())
}

// damage changes some bytes of a line, seldom.
func (g *rulesGrammar) damage(line string) string {
	if g.plain || g.chance(85) || line == "" {
		return line
	}
	at := g.r.IntN(len(line))
	switch g.r.IntN(4) {
	case 0:
		return line[:at] + line[at+1:]
	case 1:
		return line[:at]
	}
	sign := g.pick(" ", "\t", "\r", "\"", `""`, "#", ",", "\\", "\\\n", "\\\r\r\n", "@", "/", "+", "=", "\x00", "\v", "\f", "\u00a0", "\ufeff", "\x01", "\xff", "\n", "\r\n", "\u2028")
	return line[:at] + sign + line[at:]
}

// other writes a line that is no rule.
func (g *rulesGrammar) other() string {
	if g.plain {
		return g.pick("", "# comment", "   ", "\t# local all all trust", "#", "# \\\nlocal all all trust", "\\", "\r", ",")
	}
	return g.pick(
		"include rules.conf", "include_if_exists absent.conf", "include_if_exists rules.conf", "include_dir conf.d", `"include" rules.conf`, "include bad.conf", "include absent", "include rules.conf x", "include", "include_dir", "include rules.conf # comment",
		"INCLUDE rules.conf", "included rules.conf", "include,x rules.conf", "\ufeff# comment", "\ufeff", ",,", ",", `""`, `"`, "# "+strings.Repeat("x", 5000), strings.Repeat(" ", 9000)+"# x", "\x00", "# \x00 local all all trust", "\\\\", "@rules.conf",
		"local all "+strings.Repeat("alice,", 200)+"bob trust", "local all "+strings.Repeat("\"x y\" , ", 3)+" trust", "local all all trust"+strings.Repeat(" ", 4000)+"x", "host all all 127.0.0.1/32"+strings.Repeat("\t", 300)+"trust", `local all all tru\`,
	)
}

// text writes a file.
func (g *rulesGrammar) text() string {
	var b strings.Builder
	if !g.plain && g.chance(2) {
		b.WriteString("\ufeff")
	}
	for range 1 + g.r.IntN(map[bool]int{true: 24, false: 12}[g.plain]) {
		if g.chance(15) {
			b.WriteString(g.other())
		} else {
			b.WriteString(g.rule())
		}
		b.WriteString(g.pick("\n", "\n", "\n", "\n", "\n", "\n\n", "\r\n", "\r\r\n"))
	}
	text := b.String()
	if g.chance(10) {
		text = strings.TrimRight(text, "\r\n") + g.pick("", "\\", "\\\n", "\r", " \\\r", "\\\\", "\n\n\\\n")
	}
	return text
}
