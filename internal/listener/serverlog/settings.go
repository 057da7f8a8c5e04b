package serverlog

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// Settings decide whether the server logs a cancelled wait where it is read. A setting has each value that may be in
// force: that of a session, and that of the configuration files.
type Settings struct {
	Collector   bool     // logging_collector
	Destination []string // log_destination
	MinMessages []string // log_min_messages
	Messages    []string // lc_messages
	Defaults    []Default
	Granted     []string // of these settings, those that others than superusers may change
	Unknown     bool     // the server's program does not have the message, see Knows
}

// Default is a default of a role that is no superuser, or of a database, for one of these settings.
type Default struct{ Of, Name, Value string }

// loud are the levels of log_min_messages at which a warning is logged.
var loud = map[string]bool{"debug5": true, "debug4": true, "debug3": true, "debug2": true, "debug1": true, "debug": true, "info": true, "notice": true, "warning": true}

// judge returns why the log cannot be relied on with these settings, and what to do about that; empty if it can.
// foreign is why messages are not understood, so that each output may be the warning; empty if they are.
func (s Settings) judge() (weak, foreign string) {
	if s.Collector {
		return "logging_collector is on, so that messages go past the keeper; set logging_collector = off and restart the server", ""
	}
	if len(s.Destination) == 0 || len(s.MinMessages) == 0 || len(s.Messages) == 0 {
		return "the server does not tell its settings; see log/agent.log", ""
	}
	for _, d := range s.Destination {
		if !strings.Contains(strings.ToLower(d), "stderr") {
			return "log_destination is " + d + "; add stderr to it", ""
		}
	}
	for _, l := range s.MinMessages {
		if !loud[strings.ToLower(l)] {
			return "log_min_messages is " + l + ", so that warnings are not logged; set it to warning", ""
		}
	}
	if s.Unknown {
		return "this PostgreSQL words its warning of a cancelled wait in a way that Coterie does not know; use a newer Coterie", ""
	}
	if len(s.Granted) > 0 {
		return "others than superusers may change " + strings.Join(s.Granted, ", ") + "; revoke that with REVOKE SET, ALTER SYSTEM ON PARAMETER", ""
	}
	languages := s.Messages
	for _, d := range s.Defaults {
		switch name := strings.ToLower(d.Name); {
		case name == "log_min_messages" && !loud[strings.ToLower(d.Value)]:
			return "a default of " + d.Of + " sets log_min_messages = " + d.Value + "; reset it", ""
		case name == "lc_messages":
			languages = append(slices.Clone(languages), d.Value)
		}
	}
	for _, l := range languages {
		if !english(l) {
			foreign = fmt.Sprintf("lc_messages is %q, so that each message may be a warning; set lc_messages = C", l)
		}
	}
	return "", foreign
}

// english reports whether messages of that locale are PostgreSQL's own. An empty locale is the environment's, in which
// the server keeps the last locale that lc_messages had: it may be any.
func english(locale string) bool {
	l := strings.ToLower(locale)
	return l == "c" || l == "posix" || strings.HasPrefix(l, "c.") || l == "en" || strings.HasPrefix(l, "en_") || strings.HasPrefix(l, "en-") || strings.HasPrefix(l, "english")
}

// wording is the message for a wait that was cancelled while the session goes on, as PostgreSQL's program has it.
var wording = []byte("canceling wait for synchronous replication due to user request")

// known remembers programs, by path, size and time of change.
var known sync.Map

// Knows reports whether the program of a server has the message that the reader looks for. It reads the program once.
func Knows(program string) bool {
	st, err := os.Stat(program)
	if err != nil {
		return false
	}
	key := fmt.Sprint(program, st.Size(), st.ModTime().UnixNano())
	if has, ok := known.Load(key); ok {
		return has == true
	}
	b, err := os.ReadFile(program)
	if err != nil {
		return false
	}
	has := bytes.Contains(b, wording)
	known.Store(key, has)
	return has
}
