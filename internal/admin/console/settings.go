package console

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// reported are the settings whose values the client receives at its start and at each change.
var reported = []string{
	"server_version", "server_encoding", "client_encoding", "application_name", "default_transaction_read_only", "in_hot_standby", "is_superuser",
	"session_authorization", "DateStyle", "IntervalStyle", "TimeZone", "integer_datetimes", "standard_conforming_strings",
}

func (s *Session) defaults() map[string]string {
	super := "off"
	if s.who.May >= 3 {
		super = "on"
	}
	return map[string]string{
		"server_version": s.backend.Version(), "server_version_num": versionNumber(s.backend.Version()), "server_encoding": "UTF8", "client_encoding": "UTF8",
		"application_name": "", "default_transaction_read_only": "off", "in_hot_standby": "off", "is_superuser": super,
		"session_authorization": s.who.User, "datestyle": "ISO, MDY", "intervalstyle": "postgres", "timezone": "UTC", "integer_datetimes": "on",
		"standard_conforming_strings": "on", "transaction_isolation": "read committed", "default_transaction_isolation": "read committed",
		"search_path": "sys, coterie", "max_identifier_length": "63", "extra_float_digits": "1", "statement_timeout": "0", "lc_collate": "C", "lc_ctype": "C",
		"client_min_messages": "notice", "transaction_read_only": "off", "max_index_keys": "32", "row_security": "on", "bytea_output": "hex",
	}
}

// versionNumber returns 150018 for 15.18.
func versionNumber(v string) string {
	major, rest, _ := strings.Cut(v, ".")
	minor := rest
	if i := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		minor = rest[:i]
	}
	if len(minor) > 4 {
		minor = minor[:4]
	}
	return major + strings.Repeat("0", 4-len(minor)) + minor
}

// The settings under which the console executes no statement that changes something, as PostgreSQL does: of the
// transactions that begin, and of the one that is open.
const (
	readOnly   = "default_transaction_read_only"
	txReadOnly = "transaction_read_only"
)

// readsOnly reports whether a statement that changes something is refused now.
func (s *Session) readsOnly() bool {
	if s.tx == txIdle {
		return s.settings[readOnly] == "on"
	}
	return s.reads
}

// accessOf returns on if READ ONLY is among the words of a statement, off for READ WRITE; "": neither is. The last one
// counts.
func accessOf(words []string) (access string) {
	for i := 1; i < len(words); i++ {
		switch strings.ToUpper(words[i-1] + " " + words[i]) {
		case "READ ONLY":
			access = "on"
		case "READ WRITE":
			access = "off"
		}
	}
	return access
}

// withoutComments puts a blank in the place of each comment of a statement that has no texts in quotes.
func withoutComments(text string) string {
	var b strings.Builder
	depth := 0 // of nested comments
	for i := 0; i < len(text); i++ {
		switch rest := text[i:]; {
		case strings.HasPrefix(rest, "/*"):
			depth++
			i++
		case depth > 0 && strings.HasPrefix(rest, "*/"):
			depth--
			i++
			b.WriteByte(' ')
		case depth > 0:
		case strings.HasPrefix(rest, "--"):
			line, _, _ := strings.Cut(rest, "\n")
			i += len(line) - 1
		default:
			b.WriteByte(text[i])
		}
	}
	return b.String()
}

// access gives the open transaction the mode that a statement names, if it names one.
func (s *Session) access(words []string) {
	if a := accessOf(words); a != "" {
		s.reads = a == "on"
	}
}

// mode executes SET TRANSACTION, and SET SESSION CHARACTERISTICS for the transactions that begin. Isolation changes
// nothing here.
func (s *Session) mode(fields []string, rest string) (Result, error) {
	modes := strings.FieldsFunc(withoutComments(rest), func(r rune) bool { return !wordRune(r) })
	switch a := accessOf(modes); {
	case a == "":
	case !strings.EqualFold(fields[0], "TRANSACTION"):
		return s.give(Result{Tag: "SET"}, readOnly, a, false)
	default:
		return s.give(Result{Tag: "SET"}, txReadOnly, a, true)
	}
	return Result{Tag: "SET"}, nil
}

// boolean returns on or off for a value of a setting that is one of both; "": it is neither.
func boolean(value string) string {
	switch v := strings.ToLower(value); {
	case v == "1" || v == "on" || v != "" && (strings.HasPrefix("true", v) || strings.HasPrefix("yes", v)):
		return "on"
	case v == "0" || v == "of" || v == "off" || v != "" && (strings.HasPrefix("false", v) || strings.HasPrefix("no", v)):
		return "off"
	}
	return ""
}

// quiet are settings of PostgreSQL that drivers, poolers and dumps send on their own. Like those of defaults they are
// accepted without a word, and but for statement_timeout and those of read-only transactions no setting changes what a
// statement does here.
var quiet = []string{
	"lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout", "transaction_timeout", "synchronous_commit", "session_replication_role",
	"check_function_bodies", "xmloption", "default_tablespace", "default_table_access_method", "synchronize_seqscans", "quote_all_identifiers", "geqo", "jit",
	"default_transaction_deferrable", "plan_cache_mode", "lc_messages", "lc_monetary", "lc_numeric", "lc_time", "seed",
}

// options are settings of T-SQL, which have a value without a sign before it.
var options = []string{
	"NOCOUNT", "ARITHABORT", "ARITHIGNORE", "ANSI_WARNINGS", "ANSI_PADDING", "ANSI_NULL_DFLT_ON", "ANSI_NULL_DFLT_OFF", "DEADLOCK_PRIORITY", "LOCK_TIMEOUT", "TEXTSIZE",
	"STATISTICS", "CURSOR_CLOSE_ON_COMMIT", "CONTEXT_INFO", "IDENTITY_INSERT", "OFFSETS", "FIPS_FLAGGER", "QUERY_GOVERNOR_COST_LIMIT", "REMOTE_PROC_TRANSACTIONS",
	"FORCEPLAN", "DISABLE_DEF_CNST_CHK", "XACT_ABORT", "TRAN", "XML", "SCHEMA", "AUTHORIZATION",
}

// option executes SET NOCOUNT ON and the like, which have no effect. Other names are a mistake.
func option(verb string, fields []string) (Result, error) {
	for _, name := range strings.Split(strings.ToUpper(fields[0]), ",") {
		if _, known := meanings[name]; name != "" && !known && !slices.Contains(options, name) {
			return Result{}, Errorf("42601", "%s %.60s is not known in the console", verb, strings.Join(fields, " ")).
				WithHint("SET name = value is for settings of PostgreSQL; docs/coming-from-sql-server.md has what is taken of T-SQL")
		}
	}
	return Result{Tag: verb}, nil
}

// set executes SET name = value, SET name TO value, RESET name and the forms of standard SQL. Any name is accepted, and
// its last value is kept; a name that no client sends on its own has a notice.
func (s *Session) set(text string) (Result, error) {
	text = strings.TrimRight(strings.TrimSpace(stripComments(text)), ";")
	verb, rest := text, ""
	if i := strings.IndexFunc(text, unicode.IsSpace); i >= 0 {
		verb, rest = text[:i], text[i:]
	}
	verb = strings.ToUpper(strings.TrimSpace(verb))
	fields := strings.Fields(rest)
	local := len(fields) > 1 && strings.EqualFold(fields[0], "LOCAL")
	if len(fields) > 1 && (strings.EqualFold(fields[0], "SESSION") || strings.EqualFold(fields[0], "LOCAL")) && !strings.EqualFold(fields[1], "CHARACTERISTICS") {
		rest = strings.TrimSpace(strings.TrimSpace(rest)[len(fields[0]):])
		fields = fields[1:]
	}
	switch {
	case len(fields) == 0:
		return Result{}, Errorf("42601", "%s needs a name", verb)
	case verb == "RESET" && strings.EqualFold(fields[0], "ALL"):
		s.reset()
		return Result{Tag: verb}, nil
	case verb == "SET" && strings.EqualFold(fields[0], "XACT_ABORT") && len(fields) == 2:
		s.aborts = strings.EqualFold(fields[1], "ON")
		return Result{Tag: verb}, nil
	case verb == "SET" && otherRole(rest):
		return Result{}, Errorf("0A000", "SET %s is not supported in the console: the statements would go on with the rights of %s", strings.ToUpper(fields[0]), s.who.User).
			WithHint("log in as the other role")
	case verb == "SET" && otherMeaning(fields):
		return Result{}, Errorf("0A000", "SET %s is not supported in the console: the statements behind it would mean what they mean without it", strings.ToUpper(strings.Join(fields, " "))).
			WithHint("leave it out, and write the statements so that they do not depend on it")
	case verb == "SET" && (strings.EqualFold(fields[0], "TRANSACTION") || strings.EqualFold(fields[0], "SESSION")):
		return s.mode(fields, rest)
	case slices.ContainsFunc([]string{"TRANSACTION", "SESSION", "CONSTRAINTS", "ROLE"}, func(w string) bool { return strings.EqualFold(fields[0], w) }):
		return Result{Tag: verb}, nil
	case strings.EqualFold(fields[0], "NAMES") && len(fields) > 1:
		return s.give(Result{Tag: verb}, "client_encoding", unquote(fields[1]), local)
	case strings.EqualFold(fields[0], "TIME") && len(fields) > 2:
		return s.give(Result{Tag: verb}, "TimeZone", unquote(fields[2]), local)
	}
	if verb == "RESET" {
		delete(s.local, strings.ToLower(fields[0]))
		return Result{Tag: verb}, s.assign(fields[0], s.first[strings.ToLower(fields[0])])
	}
	name, value, ok := strings.Cut(rest, "=")
	if !ok || strings.ContainsAny(strings.TrimSpace(name), " '\"") {
		name = fields[0]
		if len(fields) < 3 || !strings.EqualFold(fields[1], "TO") && fields[1] != "=" {
			return option(verb, fields)
		}
		value = strings.TrimSpace(strings.TrimSpace(rest)[len(fields[0]):])
		value = value[len(fields[1]):]
	}
	value = unquote(strings.TrimSpace(value))
	name = strings.TrimSpace(name)
	if strings.EqualFold(value, "DEFAULT") {
		value = s.first[strings.ToLower(name)]
	}
	return s.give(Result{Tag: verb}, name, value, local)
}

// give gives a setting a value, and says so if that has no effect. A local one ends with the transaction.
func (s *Session) give(r Result, name, value string, local bool) (Result, error) {
	key := strings.ToLower(strings.Trim(name, `"`))
	old, had := s.settings[key]
	switch a := boolean(value); {
	case key == txReadOnly && a == "":
		return Result{}, Errorf("22023", "parameter %q requires a Boolean value", key)
	case key == txReadOnly && s.tx == txIdle:
		r.Notices = []Notice{{"WARNING", "SET TRANSACTION can only be used in transaction blocks: SET " + readOnly + " is for those that begin"}}
		return r, nil
	case key == txReadOnly:
		s.reads = a == "on"
		return r, nil
	case local && s.tx == txIdle:
		r.Notices = []Notice{{"WARNING", "SET LOCAL can only be used in transaction blocks"}}
		return r, nil
	}
	if err := s.assign(name, value); err != nil {
		return Result{}, err
	}
	if _, again := s.local[key]; !local {
		delete(s.local, key) // it holds beyond the transaction
	} else if !again {
		if s.local == nil {
			s.local = map[string]*string{}
		}
		s.local[key] = nil
		if had {
			s.local[key] = &old
		}
	}
	_, known := s.first[key]
	if !known && !slices.Contains(quiet, key) && !strings.Contains(key, ".") {
		r.Notices = []Notice{{"NOTICE", "SET " + strconv.Quote(key) + " has no effect in the console"}}
	}
	return r, nil
}

// reset gives every setting the value that it had when the session began.
func (s *Session) reset() { s.settings, s.local = maps.Clone(s.first), nil }

// endSettings ends the transaction for the settings: after COMMIT what was set for it alone is taken back, after
// ROLLBACK all that was set in it.
func (s *Session) endSettings(committed bool) {
	next := s.before
	if committed || next == nil {
		next = maps.Clone(s.settings)
		for key, value := range s.local {
			if value == nil {
				delete(next, key)
			} else {
				next[key] = *value
			}
		}
	}
	for key, value := range s.settings {
		if was, had := next[key]; !had || was != value {
			s.changed = append(s.changed, key)
		}
	}
	s.settings, s.local, s.before = next, nil, nil
}

// otherRole reports whether what follows SET takes the rights of another role.
func otherRole(rest string) bool {
	f := strings.Fields(strings.ToUpper(strings.NewReplacer("'", "", `"`, "", "=", " ").Replace(rest)))
	f = slices.DeleteFunc(f, func(w string) bool { return w == "TO" || w == "SESSION" || w == "LOCAL" })
	return len(f) > 1 && (f[0] == "ROLE" || f[0] == "AUTHORIZATION" || f[0] == "SESSION_AUTHORIZATION") && f[1] != "NONE" && f[1] != "DEFAULT"
}

// meanings are settings of T-SQL that change what other statements mean or whether they are executed, with the values
// by which they do not.
var meanings = map[string][]string{
	"ROWCOUNT": {"0"}, "DATEFIRST": {"7"}, "DATEFORMAT": {"MDY", "YMD"}, "LANGUAGE": {"US_ENGLISH", "ENGLISH"}, "NOEXEC": {"OFF"}, "PARSEONLY": {"OFF"}, "FMTONLY": {"OFF"},
	"SHOWPLAN_ALL": {"OFF"}, "SHOWPLAN_TEXT": {"OFF"}, "SHOWPLAN_XML": {"OFF"}, "ANSI_NULLS": {"ON"}, "QUOTED_IDENTIFIER": {"ON"}, "CONCAT_NULL_YIELDS_NULL": {"ON"},
	"ANSI_DEFAULTS": {"ON"}, "IMPLICIT_TRANSACTIONS": {"OFF"}, "NUMERIC_ROUNDABORT": {"OFF"},
}

// otherMeaning reports whether a SET of T-SQL changes what other statements mean. Its names are in a list, its value is
// the last word.
func otherMeaning(fields []string) bool {
	if len(fields) < 2 || strings.Contains(strings.Join(fields, " "), "=") {
		return false
	}
	value := strings.Trim(strings.TrimPrefix(strings.ToUpper(fields[len(fields)-1]), "N'"), "'[]")
	for _, name := range strings.Split(strings.ToUpper(strings.Join(fields[:len(fields)-1], "")), ",") {
		if same, known := meanings[name]; known && !slices.Contains(same, value) {
			return true
		}
	}
	return false
}

func unquote(v string) string {
	if len(v) > 1 && (v[0] == '\'' || v[0] == '"') && v[len(v)-1] == v[0] {
		return strings.ReplaceAll(v[1:len(v)-1], string(v[0])+string(v[0]), string(v[0]))
	}
	return v
}

func (s *Session) assign(name, value string) error {
	key := strings.ToLower(strings.Trim(name, `"`))
	if len(key) > 63 || len(value) > 1024 {
		return Errorf("22023", "the name or the value of a setting is too long")
	}
	switch key {
	case "client_encoding":
		if v := strings.ToUpper(strings.NewReplacer("-", "", "_", "").Replace(value)); v != "UTF8" && v != "UNICODE" && v != "SQLASCII" && v != "" {
			return Errorf("22023", "the console speaks UTF8 only, not %.20q", value)
		}
		value = "UTF8"
	case readOnly:
		if value = boolean(value); value == "" {
			return Errorf("22023", "parameter %q requires a Boolean value", key)
		}
	case "statement_timeout":
		if _, ok := durationOf(value); !ok {
			return Errorf("22023", "invalid value for parameter \"statement_timeout\": %.40q", value).WithHint("milliseconds, or a number with us, ms, s, min, h or d")
		}
	case "server_version", "server_version_num", "is_superuser", "session_authorization", "server_encoding", "integer_datetimes", "in_hot_standby", txReadOnly:
		return Errorf("55P02", "parameter %q cannot be changed", key)
	}
	if _, known := s.settings[key]; !known && len(s.settings) >= maxSettings {
		return Errorf("54000", "a session remembers at most %d settings", maxSettings)
	}
	if s.settings[key] != value {
		s.changed = append(s.changed, key)
	}
	s.settings[key] = value
	return nil
}

// showName returns the name of the setting that a SHOW names.
func showName(text string) string {
	fields := strings.Fields(strings.TrimRight(stripComments(text), "; \n\t"))
	name := strings.ToLower(strings.Join(fields[1:], " "))
	switch name {
	case "transaction isolation level":
		return "transaction_isolation"
	case "time zone":
		return "timezone"
	}
	return strings.Trim(name, `"`)
}

func (s *Session) show(text string) (Result, error) {
	name := showName(text)
	v, ok := s.settings[name]
	if name == txReadOnly && s.readsOnly() {
		v = "on"
	}
	if !ok {
		return Result{}, Errorf("42704", "unrecognized configuration parameter %.60q", name).
			WithHint("PostgreSQL's settings: SELECT * FROM coterie.settings; the options of the group: SELECT * FROM coterie.options")
	}
	return Result{Columns: []Column{{name, Text}}, Rows: [][]any{{v}}, Tag: "SHOW"}, nil
}
