package stmt

import (
	"bytes"
	"strings"
)

// OnlyQueries reports whether a text has only queries and transaction statements, and calls only functions that leave
// nothing in the session that DISCARD ALL does not remove. It knows tokens and no grammar, and reports false for a text
// that it does not understand.
func OnlyQueries(text []byte) bool {
	q := queries{rest: text, first: true}
	return q.all()
}

// KeepsSession reports whether a text passes OnlyQueries, makes no table by SELECT INTO, which may be a temporary one,
// and has no UPDATE of pg_settings, which is a SET: nothing but the state of sequences differs in the session
// afterwards. Functions that a view, a trigger, a rule or an operator calls are not seen.
func KeepsSession(text []byte) bool {
	q := queries{rest: text, first: true}
	return q.all() && !q.makes && !(q.updates && q.settings)
}

// queries is the state of OnlyQueries.
type queries struct {
	rest              []byte
	first             bool   // the next word begins a statement
	last              string // the previous word, in lower case; empty: the previous token is not a word
	into              bool   // the current name is the table of INSERT INTO
	name              string // the current name, which a parenthesis would call; "?": an unknown name
	makes             bool   // there is an INTO of something else than INSERT or MERGE
	updates, settings bool   // there is an UPDATE; pg_settings, or a name that may be it
	depth             int    // parentheses that are open
	reads             uint64 // has a bit for each depth at which the statement has had a SELECT
}

// all takes all tokens. It reports false if the text is not understood.
func (q *queries) all() bool {
	for len(q.rest) > 0 {
		if !q.token() {
			return false
		}
	}
	return true
}

// token takes the next token.
func (q *queries) token() bool {
	c := q.rest[0]
	switch {
	case strings.IndexByte(" \t\r\n\f\v", c) >= 0: // \v since PostgreSQL 16
		q.rest = q.rest[1:]
		return true
	case bytes.HasPrefix(q.rest, []byte("--")):
		end := bytes.IndexAny(q.rest, "\r\n")
		if end < 0 {
			end = len(q.rest)
		}
		q.rest = q.rest[end:]
		return true
	case bytes.HasPrefix(q.rest, []byte("/*")):
		return q.comment()
	case c == '$' && (len(q.rest) < 2 || q.rest[1] < '0' || q.rest[1] > '9'):
		return false // a dollar-quoted literal
	case wordByte(c) && (c < '0' || c > '9'):
		return q.word()
	case c == '"':
		return q.quoted()
	case c == '\'':
		return q.literal()
	}
	return q.sign(c)
}

// sign takes a token of one byte.
func (q *queries) sign(c byte) bool {
	q.rest = q.rest[1:]
	switch c {
	case '(':
		if q.name != "" && !q.into && !harmless[q.name] {
			return false
		}
		if q.depth++; q.depth >= 64 {
			return false
		}
		q.reads &^= 1 << q.depth
	case ')':
		q.depth = max(0, q.depth-1)
	case ';':
		q.first, q.depth, q.reads = true, 0, 0
	case '.':
		if q.name != "" { // a qualified name; only names of pg_catalog are known
			if q.name != "pg_catalog" && !q.into {
				q.name = "?"
			}
			q.last = "."
			return true
		}
	}
	q.name, q.last, q.into = "", "", false
	return true
}

// word takes a word.
func (q *queries) word() bool {
	n := 0
	for n < len(q.rest) && wordByte(q.rest[n]) {
		n++
	}
	w := string(bytes.ToLower(q.rest[:n]))
	q.rest = q.rest[n:]
	if len(q.rest) > 0 && q.rest[0] == '\'' { // e'…' and the like have other quoting rules
		return false
	}
	if q.first && !plainFirst[w] {
		return false
	}
	switch bit := uint64(1) << q.depth; w {
	case "select":
		q.reads |= bit
	case "update":
		q.updates = true
	case "pg_settings", "uescape":
		q.settings = true
	case "into": // behind a SELECT its word before it is a name
		q.makes = q.makes || q.last != "insert" && q.last != "merge" || q.reads&bit != 0
	}
	q.first = false
	q.named(w)
	q.last = w
	return true
}

func (q *queries) quoted() bool {
	end := bytes.IndexByte(q.rest[1:], '"')
	if end < 0 || q.first {
		return false
	}
	name := q.rest[1 : end+1]
	q.settings = q.settings || string(name) == "pg_settings" || bytes.IndexByte(name, '\\') >= 0 // U&"…"
	q.rest = q.rest[end+2:]
	q.named("?")
	q.last = ""
	return true
}

// named notes a name, which a parenthesis may follow.
func (q *queries) named(w string) {
	switch {
	case q.last == "." && q.into:
	case q.last == "." && q.name == "?":
	default:
		q.into = q.last == "into"
		q.name = w
	}
}

func (q *queries) literal() bool {
	end := bytes.IndexByte(q.rest[1:], '\'')
	if end < 0 || bytes.IndexByte(q.rest[1:end+1], '\\') >= 0 { // a backslash may be an escape or not
		return false
	}
	q.rest = q.rest[end+2:]
	q.name, q.last, q.into = "", "", false
	return true
}

// comment takes a comment, which may be nested.
func (q *queries) comment() bool {
	depth := 0
	for i := 0; i+1 < len(q.rest); i++ {
		switch string(q.rest[i : i+2]) {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
		}
		if depth == 0 {
			q.rest = q.rest[i+1:]
			return true
		}
	}
	return false
}

func wordByte(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= 0x80
}

// plainFirst are the first words of queries and transaction statements.
var plainFirst = setOf(`select insert update delete merge with values table show
	begin start commit end rollback abort savepoint release`)

// harmless may precede a parenthesis: keywords, types, and functions that read or compute, or that leave only
// sequence state (DISCARD SEQUENCES).
var harmless = setOf(`in values and or not exists any all some array row select from where on using as over by having union except
	intersect when then else case between like ilike is lateral filter group set with materialized conflict limit offset distinct
	cast extract returning join
	numeric decimal varchar char character bit varbit timestamp timestamptz time timetz float interval
	count sum avg min max stddev variance string_agg array_agg json_agg jsonb_agg bool_and bool_or every row_number rank dense_rank ntile
	lag lead first_value last_value coalesce nullif greatest least abs ceil ceiling floor round trunc mod power sqrt sign random
	lower upper initcap length char_length octet_length trim btrim ltrim rtrim lpad rpad left right substring substr position strpos replace
	split_part concat concat_ws repeat reverse md5 format quote_ident quote_literal encode decode
	now age date_trunc date_part to_char to_date to_number to_timestamp make_date clock_timestamp statement_timestamp
	transaction_timestamp row_to_json to_json to_jsonb json_build_object jsonb_build_object json_build_array jsonb_build_array jsonb_set
	json_object_agg jsonb_object_agg array_length array_position array_append array_remove cardinality unnest generate_series
	gen_random_uuid nextval currval lastval setval current_setting current_database current_schema current_schemas version
	pg_backend_pid pg_is_in_recovery pg_sleep`)

func setOf(words string) map[string]bool {
	set := make(map[string]bool)
	for w := range strings.FieldsSeq(words) {
		set[w] = true
	}
	return set
}

// MayCopy reports, by the beginning of a Parse, whether its statement may be a COPY, which asks the client for more.
// Such a statement must not be executed on the kernel's path.
func MayCopy(kept []byte) bool {
	_, text, whole := bytes.Cut(kept, []byte{0})
	text = bytes.TrimLeft(text, " \t\r\n")
	if !whole || len(text) < 4 {
		return !whole || len(text) > 1 // an empty statement is not a COPY
	}
	return bytes.EqualFold(text[:4], []byte("copy")) || text[0]|0x20 < 'a' || text[0]|0x20 > 'z'
}

// NeedsDatabaseAlone reports whether a statement may need a database without other sessions. If one is not found
// here, PostgreSQL waits for longer than a pooled backend waits for its client.
func NeedsDatabaseAlone(text []byte) bool {
	text = bytes.TrimLeft(text, " \t\r\n")
	if len(text) == 0 || bytes.IndexByte([]byte("dac"), text[0]|0x20) < 0 { // most statements
		return false
	}
	word := firstWord(text)
	switch string(word) {
	case "drop", "alter", "create":
		rest := bytes.TrimLeft(text[len(word):], " \t\r\n")
		return string(firstWord(rest)) == "database"
	}
	return false
}
