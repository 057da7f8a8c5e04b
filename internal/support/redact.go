package support

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
)

// removed is written in the place of a secret.
const removed = "[removed]"

// Redactor removes secrets from texts, and counts the places. Where it is in doubt it removes.
type Redactor struct {
	Removed int
	known   []string
}

// Know has a secret removed wherever it appears. Too short ones, which could be words, are ignored.
func (r *Redactor) Know(secret string) {
	const short = 8
	if len(secret) >= short {
		r.known = append(r.known, secret)
	}
}

// secretName is a part of the names of settings, variables and keys whose values are secrets.
const secretName = `(?:passw(?:or)?d|passwd|passphrase|pwd|secret|token|credential|api[_-]?key|access[_-]?key|private[_-]?key|` +
	`signing[_-]?key|encryption[_-]?key|account[_-]?key|sas[_-]?key)`

// value is what follows such a name: quoted in one of the ways of SQL, shells, JSON and logs, or up to the next space.
const value = `(?:''(?:[^']|'''')*?''|\\'(?:[^'\\]|\\[^'])*\\'|\\"(?:[^"\\]|\\[^"])*\\"|[eE]?'(?:[^'\\]|''|\\.)*'|[uU]&'(?:[^']|'')*'|"(?:[^"\\]|\\.)*"|` +
	`\$\$.*?\$\$|\$[A-Za-z_]\w*\$.*?\$[A-Za-z_]\w*\$|\S+)`

// quotedValue is a value in quotation marks, or an opening mark whose end was cut off.
const quotedValue = `(?:''(?:[^']|'''')*?''|\\'(?:[^'\\]|\\[^'])*\\'|[eE]?'(?:[^'\\]|''|\\.)*(?:'|\z)|[uU]&'(?:[^']|'')*(?:'|\z)|` +
	`\$\$.*?(?:\$\$|\z)|\$[A-Za-z_]\w*\$.*?(?:\$[A-Za-z_]\w*\$|\z))`

// pattern finds secrets; with is the replacement. It is tried on texts with one of the words, in lower case, since most
// texts are long and have none.
type pattern struct {
	words string
	find  *regexp.Regexp
	with  string
}

// names are words of which a match of secretName has one.
const names = "passw passphrase pwd secret token credential api access private signing encryption account sas"

var patterns = []pattern{
	{"key-----", regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)`), removed},
	{"key-----", regexp.MustCompile(`[A-Za-z0-9+/=\s]*-----END [A-Z0-9 ]*PRIVATE KEY-----`), removed}, // its beginning was cut off
	{"scram-sha-256$", regexp.MustCompile(`SCRAM-SHA-256\$[^\s"',;)]+`), removed},
	{"md5", regexp.MustCompile(`\bmd5[0-9a-f]{32}\b`), removed},
	{"coterie1.", regexp.MustCompile(`\bcoterie1\.[A-Za-z0-9_-]+`), removed},
	{"://", regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s:/@"']*):[^\s"']*@`), "${1}:" + removed + "@"},
	{"eyj", regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_.-]+`), removed},
	{"akia asia", regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`), removed},
	{"gh github_ glpat- xox sk-", regexp.MustCompile(`\b(?:gh[pousr]_|github_pat_|glpat-|xox[abprs]-|sk-)[A-Za-z0-9_-]{10,}`), removed},
	{"bearer basic digest", regexp.MustCompile(`(?i)\b(bearer|basic|digest)\s+[A-Za-z0-9._~+/=-]{8,}`), "${1} " + removed},
	{names, regexp.MustCompile(`(?is)([\w.-]*` + secretName + `[\w.-]*\s+)` + quotedValue), "${1}" + removed},                       // PASSWORD 'x'
	{names, regexp.MustCompile(`(?is)([\w.-]*` + secretName + `[\w.-]*\\?["']?\s*(?:=>|:=|[:=])[ \t]*)` + value), "${1}" + removed}, // password = x
	{names, regexp.MustCompile(`(?i)(--?[\w-]*` + secretName + `[\w-]*[ \t]+)` + value), "${1}" + removed},                          // --password x
	{"command", regexp.MustCompile(`(?im)(\bparameter "[\w.]*_command" changed to )".*"$`), "${1}" + removed},                       // as PostgreSQL logs it
	{"command", regexp.MustCompile(`(?im)(\bfailed [\w ]*command was: ).*$`), "${1}" + removed},                                     // a detail of PostgreSQL
	{"_command", regexp.MustCompile(`(?is)(\b[\w.-]*_command\b\\?["']?\s*(?:=>|:=|[:=]|\bto\b)?[ \t]*)` + quotedValue), "${1}" + removed},
	{"_command", regexp.MustCompile(`(?i)(\b[\w.-]*_command\b\\?["']?\s*(?:=>|:=|[:=]|\bto\b)[ \t]*)(?:"(?:[^"\\]|\\.)*"|\\"(?:[^"\\]|\\[^"])*\\"|[^\s"'\\\[][^\n]*)`), "${1}" + removed},
	{":*: :54 :64", regexp.MustCompile(`(?m)^([^\s:#]+:(?:\d+|\*):[^:\s]*:[^:\s]*:)\S+$`), "${1}" + removed}, // a line of .pgpass
}

// Text returns the text without secrets.
func (r *Redactor) Text(text []byte) []byte {
	for _, k := range r.known {
		if n := bytes.Count(text, []byte(k)); n > 0 {
			r.Removed += n
			text = bytes.ReplaceAll(text, []byte(k), []byte(removed))
		}
	}
	lower := string(bytes.ToLower(text))
	for _, p := range patterns {
		if slices.ContainsFunc(strings.Fields(p.words), func(w string) bool { return strings.Contains(lower, w) }) {
			r.replace(&text, p)
		}
	}
	return text
}

// replace replaces in one pass.
func (r *Redactor) replace(text *[]byte, p pattern) {
	var out []byte
	from := 0
	for _, m := range p.find.FindAllSubmatchIndex(*text, -1) {
		r.Removed++
		out = append(out, (*text)[from:m[0]]...)
		out = p.find.Expand(out, []byte(p.with), *text, m)
		from = m[1]
	}
	if from > 0 {
		*text = append(out, (*text)[from:]...)
	}
}

// isSecret finds the names whose values are removed whatever they look like. The command of a setting may have a
// password in any form.
var isSecret = regexp.MustCompile(`(?i)` + secretName + `|_command$`)

// JSON returns a document without secrets, indented. Strings are looked at as they are when they are decoded.
func (r *Redactor) JSON(document []byte) ([]byte, error) {
	var v any
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return json.MarshalIndent(r.walk(v), "", " ")
}

func (r *Redactor) walk(v any) any {
	switch x := v.(type) {
	case string:
		return string(r.Text([]byte(x)))
	case []any:
		for i := range x {
			x[i] = r.walk(x[i])
		}
	case map[string]any:
		r.object(x)
	}
	return v
}

// object removes the values of keys that name a secret, and the values of rows whose name is that of a secret setting.
func (r *Redactor) object(m map[string]any) {
	name, _ := m["name"].(string)
	for k, v := range m {
		_, isText := v.(string)
		_, isList := v.([]any)
		ofRow := isSecret.MatchString(name) && k != "name" && (strings.Contains(k, "value") || k == "setting" || k == "in_force")
		if (isText || isList) && (isSecret.MatchString(k) || ofRow) && v != "" {
			m[k] = removed
			r.Removed++
			continue
		}
		m[k] = r.walk(v)
	}
}

var (
	// tag begins a message in a server's log: a word without small letters.
	tag = regexp.MustCompile(`([\p{Lu}\p{Lo}][\p{Lu}\p{Lo}\p{Lm}\p{M}\d]*)[ \x{a0}]?:  `)
	// english are the tags of a log in English.
	english = regexp.MustCompile(`^(?:DEBUG\d?|INFO|NOTICE|WARNING|ERROR|LOG|FATAL|PANIC|DETAIL|HINT|QUERY|CONTEXT|LOCATION|STATEMENT|BACKTRACE)$`)
	// statement begins a line of a server's log that has a statement, its parameters or values of rows.
	statement = regexp.MustCompile(`(STATEMENT|QUERY|CONTEXT|LOG):  .*$`)
	// ofStatement are the texts of LOG and DETAIL that have them.
	ofStatement = regexp.MustCompile(`LOG:  (?:statement: |execute |parse |bind |fastpath |duration: [\d.]+ ms  \w)|` +
		`DETAIL:  (?:[Pp]arameters?: |Key \(|Failing row contains|Prepare: |prepare: |Process \d+: |Array value)|LOG:  .*\bplan:`)
	// values are those that a message quotes from a statement.
	values = regexp.MustCompile(`(at or near |(?:invalid|malformed) [^\n]*?: |out of range: |value |token |string )".*"`)
)

// Statements returns a server's log without the texts of statements, their parameters and values of rows. They are told
// from other texts by what the server says in English. Of a log in another language only the tags are left.
func (r *Redactor) Statements(log []byte) []byte {
	var out bytes.Buffer
	keep := r.withoutStatement
	if inAnotherLanguage(log) {
		keep = r.tagOnly
	}
	skipping := true // the text may begin in the middle of a statement
	for line := range bytes.Lines(log) {
		if line[0] == '\t' { // a line of a message that has several
			if !skipping {
				out.Write(line)
			}
			continue
		}
		var kept []byte
		kept, skipping = keep(line)
		out.Write(kept)
	}
	return out.Bytes()
}

// inAnotherLanguage reports whether a log has messages that are not in English.
func inAnotherLanguage(log []byte) bool {
	for line := range bytes.Lines(log) {
		if m := tag.FindSubmatch(line); m != nil && line[0] != '\t' && !english.Match(m[1]) {
			return true
		}
	}
	return false
}

// tagOnly returns a line up to the tag of its message, and whether there was one.
func (r *Redactor) tagOnly(line []byte) (kept []byte, skip bool) {
	m := tag.FindIndex(line)
	if m == nil {
		return line, false // of another program
	}
	r.Removed++
	return slices.Concat(line[:m[1]], []byte(removed+"\n")), true
}

// withoutStatement returns a line without the statement or the values in it, and whether the lines that go on with it
// have more of them.
func (r *Redactor) withoutStatement(line []byte) (kept []byte, skip bool) {
	at := ofStatement.FindIndex(line)
	if m := statement.FindIndex(bytes.TrimRight(line, "\n")); at == nil && m != nil && !bytes.HasPrefix(line[m[0]:], []byte("LOG:")) {
		at = m
	}
	if at != nil {
		level, _, _ := bytes.Cut(line[at[0]:], []byte(":"))
		line = []byte(string(line[:at[0]]) + string(level) + ":  " + removed + "\n")
		r.Removed++
	}
	return values.ReplaceAll(line, []byte("${1}"+removed)), at != nil
}
