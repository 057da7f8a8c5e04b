package sessionstate

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
)

// Bounds of a Tracker.
const (
	maxNames = 64      // names of settings that are remembered
	maxName  = 128     // bytes of one
	overlap  = 160     // bytes of a piece that are looked at again with the next one
	maxSet   = 512     // bytes behind a SET in which the name of its setting must end
	maxLine  = 4 << 10 // bytes in which a name and the comments behind it are looked for where a piece ends
)

// Tracker follows one session. Its zero value is a session that has sent nothing.
type Tracker struct {
	names []string // settings with a dot that were set
	why   string   // why the session cannot be moved; "": no reason was seen
	tail  []byte   // the end of the last piece of a text that arrives in several
	start bool     // tail is all of the text so far
	holds bool     // a statement may have been prepared
	turns bool     // a setting by which constants are read has changed since
	skips bool     // the name of a statement, which stands before its text, goes on
	body  bool     // the text is a program

	escaped bool // the text has a name in Unicode escapes
}

// Names returns the settings with a dot in their name that the session may have set. No view of the server lists them.
func (t *Tracker) Names() []string { return t.names }

// Remember adds settings that the session is known to have set, as another Tracker has found them.
func (t *Tracker) Remember(names []string) {
	for _, n := range names {
		t.note([]byte(n))
	}
}

// Why returns why the session's state cannot be read from the server; "" if it can.
func (t *Tracker) Why() string { return t.why }

// Reported follows a setting that the server reports (ParameterStatus).
func (t *Tracker) Reported(name string) {
	switch strings.ToLower(name) {
	case "datestyle", "intervalstyle", "timezone":
		t.turns = t.turns || t.holds
	}
}

// Turned reports whether constants in the session's prepared statements may have been read by another DateStyle,
// IntervalStyle or TimeZone than the session has now.
func (t *Tracker) Turned() bool { return t.turns }

// Message follows a piece of the body of a Query ('Q'), a Parse ('P') or a FunctionCall ('F'). begun means that it is
// the beginning, whole that it reaches the end.
func (t *Tracker) Message(typ byte, piece []byte, begun, whole bool) {
	if typ == 'F' {
		t.function(piece, begun)
		return
	}
	if begun {
		t.skips = typ == 'P'
	}
	if t.skips {
		i := bytes.IndexByte(piece, 0)
		t.holds = t.holds || i != 0 && len(piece) > 0
		if i < 0 {
			return
		}
		t.skips, begun, piece = false, true, piece[i+1:]
	}
	t.Text(piece, begun, whole)
}

// Text follows a piece of the text of a Query or a Parse. begun means that it is the beginning, whole that it reaches
// the end. Once there is a reason not to move the session, nothing is looked at.
func (t *Tracker) Text(piece []byte, begun, whole bool) {
	if t.why != "" {
		t.tail = nil
		return
	}
	text := piece
	if begun {
		t.start, t.body, t.escaped = true, false, false
	} else if len(t.tail) > 0 {
		text = append(t.tail, piece...)
	}
	t.calls(text)
	t.escapes(text)
	switch {
	case t.body:
		t.program(text)
	case t.start:
		t.statement(text)
	}
	for rest := text; t.why == ""; {
		i := bytes.IndexByte(rest, ';')
		if i < 0 {
			break
		}
		rest = rest[i+1:]
		t.statement(rest)
	}
	if whole {
		t.tail = nil
		return
	}
	tail, all := ending(text)
	if callsBehind(text) && !callsBehind(tail) {
		t.refuse("a call was written with a long comment before its parenthesis")
	}
	t.tail, t.start = tail, t.start && all
}

// callsBehind reports whether a parenthesis in the next line would call a function that matters.
func callsBehind(text []byte) bool {
	var t Tracker
	t.behind(append(bytes.Clone(text[max(0, len(text)-maxLine):]), '\n'), nil)
	return t.why != ""
}

// ending returns the end of a text, with a gap of any length as one byte, so that what stands before it stays in sight.
// all is whether that is the whole text.
func ending(text []byte) (end []byte, all bool) {
	n, gap := len(text), false
	for n > 0 && (len(end) < overlap || gap) {
		n--
		c := text[n]
		was := gap
		switch gap = strings.IndexByte(space, c) >= 0; {
		case !gap || !was:
			end = append(end, c)
		case c == '\n' || c == '\r': // it ends a comment
			end[len(end)-1] = c
		}
	}
	slices.Reverse(end)
	return end, n == 0
}

// escapes refuses a name in Unicode escapes whose sign stands behind it: UESCAPE and a literal in any spelling.
func (t *Tracker) escapes(text []byte) {
	for rest := text; !t.escaped; {
		i := bytes.Index(rest, []byte(`&"`))
		if i < 0 {
			return
		}
		t.escaped = i > 0 && rest[i-1]|0x20 == 'u'
		rest = rest[i+2:]
	}
	if bytes.Contains(bytes.ToLower(text), []byte("uescape")) {
		t.refuse("a name was written in Unicode escapes with a sign of its own")
	}
}

// function looks at a FunctionCall by the number of its function, which is the same in every version.
func (t *Tracker) function(piece []byte, begun bool) {
	if !begun {
		return
	}
	if len(piece) < 4 {
		t.refuse("it has called a function by a message in parts")
		return
	}
	t.called(functions[binary.BigEndian.Uint32(piece)], nil)
}

// functions are those of PostgreSQL whose effects no view shows. Those of extensions have other numbers everywhere, and
// are known by their libraries.
var functions = map[uint32]string{
	1575: "currval", 2559: "lastval", 1599: "setseed", 2078: "set_config", 2172: "pg_backup_start", 6006: "pg_replication_origin_session_setup",
}

// calls looks at what is called in the text: at the name before each parenthesis.
func (t *Tracker) calls(text []byte) {
	for at := 0; t.why == ""; {
		i := bytes.IndexByte(text[at:], '(')
		if i < 0 {
			return
		}
		at += i
		t.behind(text[:at], text[at+1:])
		at++
	}
}

// behind looks at one call. before ends with the name and what may stand behind a name.
func (t *Tracker) behind(before, arguments []byte) {
	for len(before) > 0 {
		name := t.callee(before, arguments)
		if !bytes.ContainsAny(before[len(name):], "\r\n") {
			return
		}
		before = nil
		line := bytes.LastIndexAny(name, "\r\n") + 1
		for at := line; ; at++ { // the name may stand before a comment; a sign of one before that may be in quotes
			i := bytes.Index(name[at:], []byte("--"))
			if i < 0 {
				break
			}
			if at += i; len(bytes.TrimRight(name[line:at], space+`"`)) == 0 {
				before = name[:at] // it may stand in the line before
			} else {
				t.callee(name[:at], arguments)
			}
		}
	}
}

// callee looks at one call, whose name stands at the end of before, but for space. It returns before without that.
func (t *Tracker) callee(before, arguments []byte) (name []byte) {
	if name = bytes.TrimRight(before, space+`"`); len(name) == 0 {
		return name
	}
	t.call(name, arguments)
	if quoted := bytes.TrimRight(before, space); len(quoted) > len(name) {
		if begin := bytes.LastIndexByte(name, '"'); begin > 1 && name[begin-1] == '&' && name[begin-2]|0x20 == 'u' {
			t.refuse("a call was written with a name in Unicode escapes")
		}
	}
	return name
}

// space are the bytes that PostgreSQL takes for space between words.
const space = " \t\r\n\f\v"

// call looks at one call. before ends with the name, arguments begins with the first argument.
func (t *Tracker) call(before, arguments []byte) {
	n := len(before)
	for n > 0 && nameByte(before[n-1]) {
		n--
	}
	name := before[n:]
	if len(name) == 0 {
		if bytes.HasSuffix(before, []byte("*/")) { // a comment hides the name
			t.refuse("a call was written with a comment before its parenthesis")
		}
		return
	}
	switch len(name) {
	case len("currval"), len("set_config"), len("dblink_connect"), len("pg_backup_start"), len("dblink_connect_u"), len("pg_replication_origin_session_setup"):
	default: // lastval and setseed are as long as currval
		return
	}
	t.called(strings.ToLower(string(name)), arguments)
}

// called looks at a call of the function of that name. Without arguments in sight set_config may set anything.
func (t *Tracker) called(name string, arguments []byte) {
	switch name {
	case "currval", "lastval":
		t.refuse("it has used currval or lastval")
	case "setseed":
		t.refuse("it has set the seed of random")
	case "dblink_connect", "dblink_connect_u":
		t.refuse("it has opened a connection by dblink")
	case "pg_backup_start":
		t.refuse("it has begun a backup")
	case "pg_replication_origin_session_setup":
		t.refuse("it has a replication origin")
	case "set_config":
		t.configured(arguments)
	}
}

// configured notes the setting of a call of set_config.
func (t *Tracker) configured(arguments []byte) {
	a := bytes.TrimLeft(arguments, space)
	if len(a) > 0 && a[0] == '\'' {
		name, rest, found := bytes.Cut(a[1:], []byte{'\''})
		if rest = bytes.TrimLeft(rest, space); found && plainName(name) && len(rest) > 0 && rest[0] == ',' {
			t.note(name)
			return
		}
	}
	t.refuse("it has called set_config with a name that its text does not show")
}

// statement looks at the beginning of a statement.
func (t *Tracker) statement(text []byte) {
	text = bytes.TrimLeft(text, space)
	if len(text) < 2 {
		return
	}
	switch text[0] | 0x20 {
	case 's', 'r', 'l', 'd', 'p', '-' | 0x20, '/' | 0x20:
	default:
		return
	}
	word, rest := nextWord(text)
	switch strings.ToLower(word) {
	case "set", "reset": // RESET makes a setting of one's own that there was not
		t.set(rest)
	case "load":
		t.refuse("it has loaded a library")
	case "prepare":
		t.holds = true
	case "do":
		t.holds = true
		t.programFrom(rest)
	case "":
		if bytes.HasPrefix(text, []byte("--")) || bytes.HasPrefix(text, []byte("/*")) {
			t.holds = true
			t.programFrom(text) // the comment may hide what the statement is
		}
	}
}

// programFrom notes that the text is a program from there on. The first one includes all later ones.
func (t *Tracker) programFrom(text []byte) {
	if !t.body {
		t.body = true
		t.program(text)
	}
}

// set notes the setting of SET. A text may have thousands of them, so it looks only so far.
func (t *Tracker) set(text []byte) {
	near := text[:min(len(text), maxSet)]
	name, rest := settingName(near)
	if n := strings.ToLower(string(name)); n == "session" || n == "local" {
		name, rest = settingName(rest)
	}
	if rest = afterSpace(rest); len(near) < len(text) && (len(rest) < 2 || bytes.HasPrefix(rest, []byte("--")) || bytes.HasPrefix(rest, []byte("/*"))) {
		t.refuse("it has set a setting whose name is far from its SET")
	}
	t.note(name)
}

// program looks for SET in a text that is a program, or may be one.
func (t *Tracker) program(text []byte) {
	for len(text) > 0 && t.why == "" {
		i := bytes.IndexAny(text, "sSrRlL")
		if i < 0 {
			return
		}
		word, rest := nextWord(text[i:])
		begins := i == 0 || !nameByte(text[i-1])
		if begins && (strings.EqualFold(word, "set") || strings.EqualFold(word, "reset")) {
			t.set(rest)
		}
		if begins && strings.EqualFold(word, "load") {
			t.refuse("it has loaded a library")
		}
		text = text[i+max(1, len(word)):]
	}
}

// note remembers the name of a setting.
func (t *Tracker) note(name []byte) {
	switch {
	case strings.EqualFold(string(name), "seed"):
		t.refuse("it has set the seed of random")
	case bytes.IndexByte(name, '.') < 0: // pg_settings lists it
	case len(name) > maxName || !plainName(name):
		t.refuse("it has set a setting with an unusual name")
	case slices.ContainsFunc(t.names, func(n string) bool { return strings.EqualFold(n, string(name)) }):
	case len(t.names) >= maxNames:
		t.refuse("it has set too many settings of its own")
	default:
		t.names = append(t.names, string(name))
	}
}

func (t *Tracker) refuse(why string) {
	if t.why == "" {
		t.why = why
	}
}

// settingName returns the name at the beginning of the text, without quotes and space around its parts. A name in
// Unicode escapes is returned with a sign that no plain name has.
func settingName(text []byte) (name, rest []byte) {
	for {
		text = afterSpace(text)
		word, rest := nextWord(text)
		switch {
		case word == "" && len(text) > 0 && text[0] == '"':
			part, after, _ := bytes.Cut(text[1:], []byte{'"'})
			name, text = append(name, part...), after
		case bytes.HasPrefix(rest, []byte(`&"`)):
			return []byte("&."), rest
		default:
			name, text = append(name, word...), rest
		}
		after := afterSpace(text)
		if len(after) == 0 || after[0] != '.' || bytes.IndexByte(name, '.') >= 0 && len(name) > maxName {
			return name, text
		}
		name, text = append(name, '.'), after[1:]
	}
}

// afterSpace returns the text without space and comments at its beginning.
func afterSpace(text []byte) []byte {
	for {
		text = bytes.TrimLeft(text, space)
		end := -1
		switch {
		case bytes.HasPrefix(text, []byte("--")):
			end = bytes.IndexAny(text, "\r\n")
		case bytes.HasPrefix(text, []byte("/*")):
			end = commentEnd(text)
		}
		if end < 0 {
			return text
		}
		text = text[end:]
	}
}

// commentEnd returns where the comment ends with which the text begins, and those within it; -1: it does not.
func commentEnd(text []byte) int {
	for i, depth := 0, 0; i+1 < len(text); i++ {
		switch string(text[i : i+2]) {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
		}
		if depth == 0 {
			return i + 1
		}
	}
	return -1
}

func nextWord(text []byte) (word string, rest []byte) {
	n := 0
	for n < len(text) && nameByte(text[n]) {
		n++
	}
	return string(text[:n]), text[n:]
}

// plainName reports whether a name consists of what is safe to write into a list of names.
func plainName(name []byte) bool {
	for _, c := range name {
		if !nameByte(c) && c != '.' || c >= 0x80 {
			return false
		}
	}
	return len(name) > 0
}

func nameByte(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= 0x80
}
