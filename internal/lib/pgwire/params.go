package pgwire

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// MaxName is the longest name of PostgreSQL in bytes. The server cuts longer ones, so they are cut here first.
const MaxName = 63

// MaxParameters is how many parameters a startup packet may have. PostgreSQL has no such limit; drivers send a dozen.
const MaxParameters = 160

// Parameter is one name and value of a startup packet.
type Parameter struct{ Name, Value string }

// Replication is the kind of session that the parameter "replication" of a startup packet requests.
type Replication int

// The kinds of session that the parameter "replication" can request.
const (
	ReplicationNone Replication = iota
	ReplicationLogical
	ReplicationPhysical
)

// SplitParameters splits the body of a startup packet, after the version, into its parameters. The errors are those of
// PostgreSQL, except that for more than MaxParameters.
func SplitParameters(body []byte) ([]Parameter, *Error) {
	var out []Parameter
	for {
		name, rest, found := bytes.Cut(body, []byte{0})
		if !found {
			return nil, Fatal("malformed", StateProtocolViolation, "invalid startup packet layout: expected terminator as last byte")
		}
		if len(name) == 0 {
			if len(rest) != 0 {
				return nil, Fatal("malformed", StateProtocolViolation, "invalid startup packet layout: bytes after the terminator")
			}
			return out, nil
		}
		value, rest, found := bytes.Cut(rest, []byte{0})
		if !found {
			return nil, Fatal("malformed", StateProtocolViolation, "invalid startup packet layout: a parameter has no value")
		}
		if !utf8.Valid(name) || !utf8.Valid(value) {
			return nil, Fatal("malformed", StateEncoding, "the startup packet is not valid UTF-8")
		}
		if len(out) == MaxParameters {
			return nil, Fatal("malformed", StateLimit, "the startup packet has more than %d parameters", MaxParameters)
		}
		out = append(out, Parameter{string(name), string(value)})
		body = rest
	}
}

// ParseBool reads a boolean as PostgreSQL does: unique prefixes of true, false, yes, no, on and off in any case, 1 and
// 0.
func ParseBool(value string) (on, ok bool) {
	v := strings.ToLower(value)
	switch {
	case v == "":
		return false, false
	case strings.HasPrefix("true", v), strings.HasPrefix("yes", v), v == "on", v == "1":
		return true, true
	case strings.HasPrefix("false", v), strings.HasPrefix("no", v), v == "of", v == "off", v == "0":
		return false, true
	}
	return false, false
}

// ParseReplication reads the value of the parameter "replication".
func ParseReplication(value string) (Replication, *Error) {
	if value == "" {
		return ReplicationNone, nil
	}
	if value == "database" {
		return ReplicationLogical, nil
	}
	on, ok := ParseBool(value)
	switch {
	case !ok:
		return ReplicationNone, Fatal("malformed", StateInvalidValue, "invalid value for parameter \"replication\": %q", value)
	case on:
		return ReplicationPhysical, nil
	}
	return ReplicationNone, nil
}

// Clip shortens a client's text for a message to MaxName bytes.
func Clip(s string) string {
	if len(s) <= MaxName {
		return s
	}
	return CutName(s) + "…"
}

// CutName shortens a name as CREATE ROLE and CREATE DATABASE would have: to MaxName bytes, between two characters.
func CutName(name string) string {
	if len(name) <= MaxName {
		return name
	}
	n := MaxName
	for n > 0 && !utf8.RuneStart(name[n]) {
		n--
	}
	return name[:n]
}
