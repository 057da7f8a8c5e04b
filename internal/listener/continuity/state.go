package continuity

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// State is what a session has made of itself, as its backend told it.
type State struct {
	Settings   map[string]string // of the session, the startup packet, the role and the database
	Reported   map[string]string // settings that a server reports to its client
	Role       string            // of SET ROLE; none
	User       string            // of SET SESSION AUTHORIZATION
	Channels   []string          // of LISTEN
	Statements map[string]Statement
	Extensions []string // of its database
	Ruleless   bool     // its database has no rules but those of views: one that is a query gives rows to a Query only
	Tells      bool     // the session may be asked for the number of its transaction (package indoubt)
	Refusal    string   // why the session cannot be moved
}

// Statement is a prepared statement.
type Statement struct {
	Text    string
	Types   []uint32 // of its parameters
	Results string   // types of its results when it was prepared, if the server tells
	FromSQL bool
}

// State returns the state that a whole answer to Question tells. names are those of the question.
func (a *Answer) State() (State, error) {
	st := State{Settings: map[string]string{}, Reported: map[string]string{}, Statements: map[string]Statement{}}
	if a.failed != "" {
		return st, fmt.Errorf("its state could not be read: %s", a.failed)
	}
	for _, r := range a.rows {
		switch r[0] {
		case rowSetting:
			st.Settings[strings.ToLower(r[1])] = r[2]
		case rowReported:
			st.Reported[r[1]] = r[2]
		case rowRole:
			st.Role = r[1]
		case rowUser:
			st.User = r[1]
		case rowChannel:
			st.Channels = append(st.Channels, r[1])
		case rowExtension:
			st.Extensions = append(st.Extensions, r[1])
		case rowTells:
			st.Tells = true
		case rowRuleless:
			st.Ruleless = true
		case rowRefusal:
			st.refuse(r[1])
		case rowStatement, rowPrepared:
			types, results, _ := strings.Cut(r[3], " ")
			s := Statement{Text: r[2], Results: results, FromSQL: r[0] == rowPrepared}
			var err error
			if s.Types, err = readTypes(types); err != nil {
				return st, err
			}
			if s.FromSQL && !singlePrepare(s.Text) {
				st.refuse("a prepared statement of it was prepared together with other statements")
			}
			st.Statements[r[1]] = s
		}
	}
	slices.Sort(st.Channels)
	switch _, changed := st.Settings["standard_conforming_strings"]; {
	case st.User == "":
		return st, errors.New("its state could not be read")
	case len(st.Statements) > maxStatements:
		st.refuse("it has too many prepared statements")
	case changed && len(st.Statements) > 0:
		st.refuse("it has prepared statements and has changed standard_conforming_strings")
	}
	return st, nil
}

func (s *State) refuse(why string) {
	if s.Refusal == "" {
		s.Refusal = why
	}
}

// readTypes reads an array of type numbers.
func readTypes(s string) (types []uint32, err error) {
	s = strings.TrimSuffix(strings.TrimPrefix(s, "{"), "}")
	if s == "" {
		return nil, nil
	}
	for f := range strings.SplitSeq(s, ",") {
		n, err := strconv.ParseUint(f, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("types of a prepared statement: %w", err)
		}
		types = append(types, uint32(n))
	}
	return types, nil
}

// singlePrepare reports whether a text is one PREPARE and nothing else. Only such a text can be executed again.
func singlePrepare(text string) bool {
	text = strings.TrimSpace(strings.TrimRight(text, "; \t\r\n"))
	return len(text) > 7 && strings.EqualFold(text[:7], "prepare") && strings.TrimLeft(text[7:8], " \t\r\n") == "" && !strings.Contains(text, ";")
}

// Differs returns in what the state of a session that was made again differs from what it was; "" if in nothing that
// could be observed. With across, the server may be of another major version.
func (s *State) Differs(again *State, across bool) string {
	for _, n := range []string{"server_encoding", "integer_datetimes", "client_encoding"} {
		if s.Reported[n] != again.Reported[n] {
			return fmt.Sprintf("%s is %q there", n, again.Reported[n])
		}
	}
	for _, n := range slices.Sorted(maps.Keys(s.Settings)) {
		if v, ok := again.Settings[n]; !ok || v != s.Settings[n] {
			return "setting " + n
		}
	}
	for _, n := range slices.Sorted(maps.Keys(again.Settings)) {
		if _, ok := s.Settings[n]; !ok {
			return "setting " + n + ", which its role or database did not have before"
		}
	}
	switch {
	case !across && s.major() != again.major():
		return "the version of PostgreSQL"
	case s.Role != again.Role:
		return "role"
	case s.User != again.User:
		return "session authorization"
	case !slices.Equal(s.Channels, again.Channels):
		return "channels of LISTEN"
	case again.Refusal != "":
		return again.Refusal
	}
	same := sameStatement
	if across {
		same = sameAcross
	}
	if !maps.EqualFunc(s.Statements, again.Statements, same) {
		return "prepared statements"
	}
	return ""
}

// Crosses reports whether a session that was made again is on a server of another major version. Another question is to
// be asked there then (Across).
func (s *State) Crosses(again *State) bool { return again.major() != s.major() }

func (s *State) major() int { return major(s.Reported["server_version"]) }

func sameStatement(a, b Statement) bool {
	return a.Text == b.Text && a.Results == b.Results && a.FromSQL == b.FromSQL && slices.Equal(a.Types, b.Types)
}

// fixedTypes is the number from which on types have other numbers in another cluster.
const fixedTypes = 10000

// sameAcross is sameStatement for a statement that was prepared on a server of another version. PostgreSQL 15 does not
// tell the types of results; those of the catalogs' own columns may be others. A statement whose results only the
// server tells that is left does not go along.
func sameAcross(a, b Statement) bool {
	if a.Results == "" {
		if low := strings.ToLower(a.Text); strings.Contains(low, "pg_") || strings.Contains(low, "information_schema") {
			return false
		}
		a.Results = b.Results
	}
	return sameStatement(a, b) && !slices.ContainsFunc(a.Types, func(n uint32) bool { return n >= fixedTypes })
}

// Now returns the state of the session that continues this one, whose client is told News of status. again is what its
// server tells.
func (s *State) Now(status map[string]string, again *State) *State {
	now := *s
	now.Reported = maps.Clone(s.Reported)
	maps.Copy(now.Reported, status)
	now.Statements = again.Statements
	return &now
}

// major returns the number with which a version begins, as in 15.4 and 19beta1.
func major(version string) (n int) {
	for _, c := range version {
		if c < '0' || c > '9' || n > 1000 {
			break
		}
		n = 10*n + int(c-'0')
	}
	return n
}

// Names returns the settings of the state that the new backend may not list in any view.
func (s *State) Names() (names []string) {
	for n := range s.Settings {
		if strings.Contains(n, ".") {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names
}

// Restore returns the requests that make a new session, whose state is fresh, into one of state s, and how many
// ReadyForQuery their answers have. Settings come first, by the role of the login, then authorization and role, then
// what is understood under them.
func (s *State) Restore(fresh *State) (requests []byte, answers int) {
	var b []byte
	set := func(name, value string) { // the name is in the text: the listener of the new server follows texts
		b = appendParse(b, "", "select pg_catalog.set_config('"+strings.ReplaceAll(name, "'", "''")+"', $1, false)", []uint32{text})
		b = appendBind(b, "", value)
		b = pgwire.AppendMessage(b, 'E', []byte{0, 0, 0, 0, 0})
	}
	if v, ok := s.Settings["client_encoding"]; ok && (v != fresh.Reported["client_encoding"] || v != fresh.Settings["client_encoding"]) {
		set("client_encoding", v) // what follows is in that encoding
	}
	for _, n := range slices.Sorted(maps.Keys(s.Settings)) {
		if v, ok := fresh.Settings[n]; n != "client_encoding" && (!ok || v != s.Settings[n]) {
			set(n, s.Settings[n])
		}
	}
	if s.User != fresh.User {
		set("session_authorization", s.User)
	}
	if s.Role != fresh.Role || s.User != fresh.User {
		set("role", s.Role)
	}
	b = pgwire.AppendMessage(b, 'C', []byte{'S', 0}) // the client has no unnamed statement
	b = pgwire.AppendMessage(b, 'S', nil)
	answers = 1
	for _, name := range slices.Sorted(maps.Keys(s.Statements)) {
		st := s.Statements[name]
		if st.FromSQL {
			b = pgwire.AppendMessage(b, 'Q', pgwire.AppendCString(nil, st.Text))
			answers++
			continue
		}
		b = pgwire.AppendMessage(appendParse(b, name, st.Text, st.Types), 'S', nil)
		answers++
	}
	if len(s.Channels) > 0 {
		var all strings.Builder
		for _, c := range s.Channels {
			all.WriteString(`listen "` + strings.ReplaceAll(c, `"`, `""`) + `"; `)
		}
		b = pgwire.AppendMessage(b, 'Q', pgwire.AppendCString(nil, all.String()))
		answers++
	}
	return b, answers
}

// Texts returns the texts of the prepared statements by their names.
func (s *State) Texts() map[string]string {
	texts := make(map[string]string, len(s.Statements))
	for name, q := range s.Statements {
		texts[name] = q.Text
	}
	return texts
}

// HasConstants reports whether a prepared statement may have a constant whose meaning depends on settings: quoted text.
func (s *State) HasConstants() bool {
	for _, q := range s.Statements {
		if strings.Contains(q.Text, "'") {
			return true
		}
		for i := strings.IndexByte(q.Text, '$'); i >= 0 && i+1 < len(q.Text); i++ {
			if c := q.Text[i+1]; q.Text[i] == '$' && (c < '0' || c > '9') { // not a parameter
				return true
			}
		}
	}
	return false
}

// Loses returns what a move would lose without the client noticing; "" if nothing.
func (s *State) Loses() string {
	switch {
	case s.Refusal != "":
		return s.Refusal
	case len(s.Channels) > 0 && !slices.Contains(s.Channels, LostChannel):
		return "it listens to channels: what is sent while it moves would be lost (LISTEN " + LostChannel + " to be told instead)"
	}
	return ""
}

// LostChannel is the channel on which a session that has moved is told that it may have missed notifications.
const LostChannel = "coterie_lost"

// Lost returns the notification on LostChannel for a session that listens to it; nil for any other.
func (s *State) Lost(pid uint32) []byte {
	if !slices.Contains(s.Channels, LostChannel) {
		return nil
	}
	body := binary.BigEndian.AppendUint32(nil, pid)
	return pgwire.AppendMessage(nil, 'A', pgwire.AppendCString(pgwire.AppendCString(body, LostChannel), "moved"))
}

// Err returns the error of a whole answer.
func (a *Answer) Err() error {
	if a.failed == "" {
		return nil
	}
	return errors.New(a.failed)
}

// Row returns the first row of a whole answer; empty texts if it has none.
func (a *Answer) Row() (row [4]string) {
	if a.failed == "" && len(a.rows) > 0 {
		row = a.rows[0]
	}
	return row
}

// News returns the ParameterStatus messages for a client that knows the reported settings of s, when the greeting of
// its new session and the answers after it reported what status holds.
func (s *State) News(status map[string]string) (b []byte) {
	for _, n := range slices.Sorted(maps.Keys(status)) {
		if old, known := s.Reported[n]; !known || old != status[n] {
			b = pgwire.AppendMessage(b, 'S', pgwire.AppendCString(pgwire.AppendCString(nil, n), status[n]))
		}
	}
	return b
}

// Reports enters the ParameterStatus messages of the answer into status.
func (a *Answer) Reports(status map[string]string) {
	for _, s := range a.status {
		status[s[0]] = s[1]
	}
}

// Greeting returns the settings that the greeting of a session reports.
func Greeting(b []byte) map[string]string {
	status := map[string]string{}
	for len(b) >= 5 {
		n := int(binary.BigEndian.Uint32(b[1:])) + 1
		if n < 5 || n > len(b) {
			break
		}
		if f := strings.Split(string(b[5:n]), "\x00"); b[0] == 'S' && len(f) >= 2 {
			status[f[0]] = f[1]
		}
		b = b[n:]
	}
	return status
}
