package listener

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/coteriedb/coterie/internal/ag"
)

// maxName is the longest name of PostgreSQL in bytes; longer ones are cut by the server, so they are cut here first.
const maxName = 63

type replicationKind int

const (
	replicationNone replicationKind = iota
	replicationLogical
	replicationPhysical
)

// setting is one configuration parameter of the session.
type setting struct{ name, value string }

// startup is the meaning of a StartupMessage: nothing of it has two readings any more. The packet for PostgreSQL is built
// anew from it, so that what was checked is what is run.
type startup struct {
	user, database string
	replication    replicationKind
	intent         ag.Intent     // empty: nothing in the packet says
	reads          reads         // empty: the default
	maxLag         time.Duration // by how much a reader's copy may be behind; 0: any
	saysReadOnly   bool          // default_transaction_read_only is among the settings
	settings       []setting     // for PostgreSQL, each name once
	minor          uint16        // of the protocol version asked for
	unknown        []string      // _pq_ options, none of which is known
	suffix         bool          // the database had the @ro suffix
}

// splitParameters takes the body after the version apart into name and value pairs.
func splitParameters(body []byte) ([]setting, *pgError) {
	var out []setting
	for {
		name, rest, found := bytes.Cut(body, []byte{0})
		if !found {
			return nil, fatal("malformed", stateProtocolViolation, "invalid startup packet layout: expected terminator as last byte")
		}
		if len(name) == 0 {
			if len(rest) != 0 {
				return nil, fatal("malformed", stateProtocolViolation, "invalid startup packet layout: bytes after the terminator")
			}
			return out, nil
		}
		value, rest, found := bytes.Cut(rest, []byte{0})
		if !found {
			return nil, fatal("malformed", stateProtocolViolation, "invalid startup packet layout: a parameter has no value")
		}
		if !utf8.Valid(name) || !utf8.Valid(value) {
			return nil, fatal("malformed", stateEncoding, "the startup packet is not valid UTF-8")
		}
		out = append(out, setting{string(name), string(value)})
		body = rest
	}
}

// parseStartup reads a StartupMessage without its length: version, then parameters.
func parseStartup(packet []byte) (*startup, *pgError) {
	version := binary.BigEndian.Uint32(packet)
	if version>>16 != 3 {
		return nil, fatal("malformed", stateNotSupported, "unsupported frontend protocol %d.%d: server supports 3.0",
			version>>16, version&0xffff)
	}
	params, bad := splitParameters(packet[4:])
	if bad != nil {
		return nil, bad
	}
	s := &startup{minor: uint16(version)}
	var direct []setting
	var options, replication string
	for _, p := range params {
		switch {
		case p.name == "user":
			s.user = p.value
		case p.name == "database":
			s.database = p.value
		case p.name == "options":
			options = p.value
		case p.name == "replication":
			replication = p.value
		case strings.HasPrefix(p.name, "_pq_."):
			s.unknown = append(s.unknown, p.name)
		case reserved(p.name):
			// In other letters it is a setting to PostgreSQL, and there is none of that name.
			return nil, fatal("malformed", stateUndefinedObject, "unrecognized configuration parameter %q", p.name)
		default:
			direct = append(direct, p)
		}
	}
	if s.user == "" {
		return nil, fatal("malformed", stateInvalidAuth, "no PostgreSQL user name specified in startup packet")
	}
	if bad := s.setReplication(replication); bad != nil {
		return nil, bad
	}
	fromOptions, bad := parseOptions(options)
	if bad != nil {
		return nil, bad
	}
	// PostgreSQL applies options first and the direct parameters after them.
	for _, p := range append(fromOptions, direct...) {
		s.set(p)
	}
	s.nameDatabase()
	if bad := s.takeIntent(); bad != nil {
		return nil, bad
	}
	return s, nil
}

// set adds a setting; one of the same name, in any case of letters, is replaced.
func (s *startup) set(p setting) {
	for i := range s.settings {
		if strings.EqualFold(s.settings[i].name, p.name) {
			s.settings = append(s.settings[:i], s.settings[i+1:]...)
			break
		}
	}
	s.settings = append(s.settings, p)
}

// named is the packet with the client's address in its application_name, as far as PostgreSQL keeps a name.
func (s *startup) named(addr string) *startup {
	named := *s
	named.settings = slices.Clone(s.settings)
	name := addr
	for _, p := range s.settings {
		if strings.EqualFold(p.name, "application_name") && p.value != "" {
			name = strings.ToValidUTF8(p.value[:min(len(p.value), max(0, maxName-len(addr)-3))], "") + " - " + addr
		}
	}
	named.set(setting{"application_name", name})
	return &named
}

// fixesRole says that the packet sets the role of the session, which DISCARD ALL does not go back to.
func (s *startup) fixesRole() bool {
	return slices.ContainsFunc(s.settings, func(p setting) bool {
		return strings.EqualFold(p.name, "role") || strings.EqualFold(p.name, "session_authorization")
	})
}

// nameDatabase strips the @ro suffix and applies the server's default and length of names.
func (s *startup) nameDatabase() {
	if name, found := strings.CutSuffix(s.database, "@ro"); found {
		s.database = name
		s.suffix = true
	}
	s.user = cutName(s.user)
	if s.database == "" {
		s.database = s.user
	}
	s.database = cutName(s.database)
}

// cutName shortens a name to what CREATE ROLE and CREATE DATABASE would have kept of it.
func cutName(name string) string {
	if len(name) <= maxName {
		return name
	}
	n := maxName
	for n > 0 && !utf8.RuneStart(name[n]) {
		n--
	}
	return name[:n]
}

func (s *startup) setReplication(value string) *pgError {
	if value == "" {
		return nil
	}
	if value == "database" {
		s.replication = replicationLogical
		return nil
	}
	on, ok := parseBool(value)
	if !ok {
		return fatal("malformed", stateInvalidValue, "invalid value for parameter \"replication\": %q", value)
	}
	if on {
		s.replication = replicationPhysical
	}
	return nil
}

// parseBool reads a boolean as PostgreSQL does: unique prefixes, any case.
func parseBool(value string) (on, ok bool) {
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

// packet builds the StartupMessage for PostgreSQL, with extra settings that win over the client's.
func (s *startup) packet(extra ...setting) []byte {
	body := binary.BigEndian.AppendUint32(nil, protocol3)
	add := func(name, value string) { body = appendCString(appendCString(body, name), value) }
	add("user", s.user)
	add("database", s.database)
	switch s.replication {
	case replicationNone:
	case replicationLogical:
		add("replication", "database")
	case replicationPhysical:
		add("replication", "true")
	}
	for _, p := range s.settings {
		add(p.name, p.value)
	}
	for _, p := range extra {
		add(p.name, p.value)
	}
	body = append(body, 0)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)
}
