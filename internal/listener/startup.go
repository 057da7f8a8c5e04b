package listener

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// startup is the meaning of a StartupMessage: nothing of it has two readings any more. The packet for PostgreSQL is built
// anew from it, so that what was checked is what is run.
type startup struct {
	user, database string
	replication    pgwire.Replication
	intent         ag.Intent          // empty: nothing in the packet says
	reads          reads              // empty: the default
	maxLag         time.Duration      // by how much a reader's copy may be behind; 0: any
	saysReadOnly   bool               // default_transaction_read_only is among the settings
	settings       []pgwire.Parameter // for PostgreSQL, each name once
	minor          uint16             // of the protocol version asked for
	unknown        []string           // _pq_ options, none of which is known
	suffix         bool               // the database had the @ro suffix
}

// parseStartup reads a StartupMessage without its length: version, then parameters.
func parseStartup(packet []byte) (*startup, *pgwire.Error) {
	version := binary.BigEndian.Uint32(packet)
	if version>>16 != 3 {
		return nil, pgwire.Fatal("malformed", pgwire.StateNotSupported, "unsupported frontend protocol %d.%d: server supports 3.0",
			version>>16, version&0xffff)
	}
	params, bad := pgwire.SplitParameters(packet[4:])
	if bad != nil {
		return nil, bad
	}
	s := &startup{minor: uint16(version)}
	var direct []pgwire.Parameter
	var options, replication string
	for _, p := range params {
		switch {
		case p.Name == "user":
			s.user = p.Value
		case p.Name == "database":
			s.database = p.Value
		case p.Name == "options":
			options = p.Value
		case p.Name == "replication":
			replication = p.Value
		case strings.HasPrefix(p.Name, "_pq_."):
			s.unknown = append(s.unknown, p.Name)
		case reserved(p.Name):
			// In other letters it is a setting to PostgreSQL, and there is none of that name.
			return nil, pgwire.Fatal("malformed", pgwire.StateUndefinedObject, "unrecognized configuration parameter %q", p.Name)
		default:
			direct = append(direct, p)
		}
	}
	if s.user == "" {
		return nil, pgwire.Fatal("malformed", pgwire.StateInvalidAuth, "no PostgreSQL user name specified in startup packet")
	}
	if s.replication, bad = pgwire.ParseReplication(replication); bad != nil {
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
func (s *startup) set(p pgwire.Parameter) {
	for i := range s.settings {
		if strings.EqualFold(s.settings[i].Name, p.Name) {
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
		if strings.EqualFold(p.Name, "application_name") && p.Value != "" {
			name = strings.ToValidUTF8(p.Value[:min(len(p.Value), max(0, pgwire.MaxName-len(addr)-3))], "") + " - " + addr
		}
	}
	named.set(pgwire.Parameter{Name: "application_name", Value: name})
	return &named
}

// fixesRole says that the packet sets the role of the session, which DISCARD ALL does not go back to.
func (s *startup) fixesRole() bool {
	return slices.ContainsFunc(s.settings, func(p pgwire.Parameter) bool {
		return strings.EqualFold(p.Name, "role") || strings.EqualFold(p.Name, "session_authorization")
	})
}

// nameDatabase strips the @ro suffix and applies the server's default and length of names.
func (s *startup) nameDatabase() {
	if name, found := strings.CutSuffix(s.database, "@ro"); found {
		s.database = name
		s.suffix = true
	}
	s.user = pgwire.CutName(s.user)
	if s.database == "" {
		s.database = s.user
	}
	s.database = pgwire.CutName(s.database)
}

// packet builds the StartupMessage for PostgreSQL, with extra settings that win over the client's.
func (s *startup) packet(extra ...pgwire.Parameter) []byte {
	list := append(make([]pgwire.Parameter, 0, 3+len(s.settings)+len(extra)),
		pgwire.Parameter{Name: "user", Value: s.user}, pgwire.Parameter{Name: "database", Value: s.database})
	switch s.replication {
	case pgwire.ReplicationNone:
	case pgwire.ReplicationLogical:
		list = append(list, pgwire.Parameter{Name: "replication", Value: "database"})
	case pgwire.ReplicationPhysical:
		list = append(list, pgwire.Parameter{Name: "replication", Value: "true"})
	}
	return pgwire.StartupMessage(append(append(list, s.settings...), extra...)...)
}
