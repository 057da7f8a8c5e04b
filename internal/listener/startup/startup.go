package startup

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// Message is the only meaning of a StartupMessage. The packet for PostgreSQL is built anew from it, so that PostgreSQL
// runs exactly the checked request.
type Message struct {
	User, Database string
	Replication    pgwire.Replication
	Intent         ag.Intent          // empty: the packet does not say
	Reads          Reads              // empty: the default
	MaxLag         time.Duration      // by how much a reader's copy may be behind; 0: no limit
	saysReadOnly   bool               // default_transaction_read_only is among the settings
	Settings       []pgwire.Parameter // for PostgreSQL, each name once
	Minor          uint16             // minor version of the protocol that was asked for
	Unknown        []string           // protocol options (_pq_.), none of which is known
	suffix         bool               // the database had the suffix @ro
}

// MaxSettings is how many settings a startup packet may have, those of its options included.
const MaxSettings = 128

// Parse reads a StartupMessage without its length: version, then parameters.
func Parse(packet []byte) (*Message, *pgwire.Error) {
	version := binary.BigEndian.Uint32(packet)
	if version>>16 != 3 {
		return nil, pgwire.Fatal("malformed", pgwire.StateNotSupported, "unsupported frontend protocol %d.%d: server supports 3.0",
			version>>16, version&0xffff)
	}
	params, bad := pgwire.SplitParameters(packet[4:])
	if bad != nil {
		return nil, bad
	}
	s := &Message{Minor: uint16(version)}
	var direct []pgwire.Parameter
	var options, replication string
	for _, p := range params {
		switch {
		case p.Name == "user":
			s.User = p.Value
		case p.Name == "database":
			s.Database = p.Value
		case p.Name == "options":
			options = p.Value
		case p.Name == "replication":
			replication = p.Value
		case strings.HasPrefix(p.Name, "_pq_."):
			s.Unknown = append(s.Unknown, p.Name)
		case reserved(p.Name):
			// In another case of letters it is a setting to PostgreSQL, which has none of that name.
			return nil, pgwire.Fatal("malformed", pgwire.StateUndefinedObject, "unrecognized configuration parameter %q", p.Name)
		default:
			direct = append(direct, p)
		}
	}
	if s.User == "" {
		return nil, pgwire.Fatal("malformed", pgwire.StateInvalidAuth, "no PostgreSQL user name specified in startup packet")
	}
	if s.Replication, bad = pgwire.ParseReplication(replication); bad != nil {
		return nil, bad
	}
	fromOptions, bad := parseOptions(options)
	if bad != nil {
		return nil, bad
	}
	if len(fromOptions)+len(direct) > MaxSettings {
		return nil, pgwire.Fatal("malformed", pgwire.StateLimit, "the startup packet has more than %d settings", MaxSettings)
	}
	// PostgreSQL applies options first and the direct parameters after them.
	s.Settings = lastOfEach(append(fromOptions, direct...))
	s.nameDatabase()
	if bad := s.takeIntent(); bad != nil {
		return nil, bad
	}
	return s, nil
}

// lastOfEach returns the settings without those that a later one of the same name replaces, in any case of ASCII
// letters, as PostgreSQL compares names. It takes time in proportion to their number: a client that has proved nothing
// sent them.
func lastOfEach(list []pgwire.Parameter) []pgwire.Parameter {
	last := make(map[string]int, len(list))
	for i, p := range list {
		last[lowerASCII(p.Name)] = i
	}
	kept := list[:0]
	for i, p := range list {
		if last[lowerASCII(p.Name)] == i {
			kept = append(kept, p)
		}
	}
	return kept
}

// lowerASCII returns the name with A to Z in lower case.
func lowerASCII(name string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, name)
}

// WithClientName returns the message with the client's address in its application_name, cut to the length of a name.
func (s *Message) WithClientName(addr string) *Message {
	named := *s
	named.Settings = slices.Clone(s.Settings)
	name := addr
	for _, p := range s.Settings {
		if strings.EqualFold(p.Name, "application_name") && p.Value != "" {
			name = strings.ToValidUTF8(p.Value[:min(len(p.Value), max(0, pgwire.MaxName-len(addr)-3))], "") + " - " + addr
		}
	}
	named.Settings = lastOfEach(append(named.Settings, pgwire.Parameter{Name: "application_name", Value: name}))
	return &named
}

// Setting returns the value of a setting for PostgreSQL, cut to the length of a name; "" if the message has none.
func (s *Message) Setting(name string) string {
	for _, p := range s.Settings {
		if strings.EqualFold(p.Name, name) {
			return strings.ToValidUTF8(p.Value[:min(len(p.Value), pgwire.MaxName)], "")
		}
	}
	return ""
}

// FixesRole reports whether the message sets the role of the session, which DISCARD ALL does not restore.
func (s *Message) FixesRole() bool {
	return slices.ContainsFunc(s.Settings, func(p pgwire.Parameter) bool {
		return strings.EqualFold(p.Name, "role") || strings.EqualFold(p.Name, "session_authorization")
	})
}

// nameDatabase strips the suffix @ro, and applies the server's default and length of names.
func (s *Message) nameDatabase() {
	if name, found := strings.CutSuffix(s.Database, "@ro"); found {
		s.Database = name
		s.suffix = true
	}
	s.User = pgwire.CutName(s.User)
	if s.Database == "" {
		s.Database = s.User
	}
	s.Database = pgwire.CutName(s.Database)
}

// Packet builds the StartupMessage for PostgreSQL, with extra settings that win over the client's.
func (s *Message) Packet(extra ...pgwire.Parameter) []byte {
	list := append(make([]pgwire.Parameter, 0, 3+len(s.Settings)+len(extra)),
		pgwire.Parameter{Name: "user", Value: s.User}, pgwire.Parameter{Name: "database", Value: s.Database})
	switch s.Replication {
	case pgwire.ReplicationNone:
	case pgwire.ReplicationLogical:
		list = append(list, pgwire.Parameter{Name: "replication", Value: "database"})
	case pgwire.ReplicationPhysical:
		list = append(list, pgwire.Parameter{Name: "replication", Value: "true"})
	}
	return pgwire.StartupMessage(append(append(list, s.Settings...), extra...)...)
}

// takeIntent finds the client's intent, and removes the listener's own settings from those for PostgreSQL. The order
// is coterie.intent, ApplicationIntent, default_transaction_read_only, the suffix of the database. The caller knows
// about the read-only port, which comes before all of them.
func (s *Message) takeIntent() *pgwire.Error {
	var own, application ag.Intent
	var readOnlyDefault bool
	kept := s.Settings[:0]
	for _, p := range s.Settings {
		name := strings.ToLower(p.Name)
		var bad *pgwire.Error
		switch {
		case name == "coterie.intent":
			own, bad = parseIntent(p)
		case name == "applicationintent", name == "coterie.applicationintent":
			application, bad = parseIntent(p)
		case name == "coterie.reads":
			s.Reads, bad = parseReads(p)
		case name == "coterie.max_lag":
			s.MaxLag, bad = ParseLag(p)
		case strings.HasPrefix(name, "coterie."):
			// client_addr, tls and later settings are set by the listener only
		default:
			if name == "default_transaction_read_only" {
				readOnlyDefault, s.saysReadOnly = pgwire.ParseBool(p.Value)
			}
			kept = append(kept, p)
		}
		if bad != nil {
			return bad
		}
	}
	s.Settings = kept
	switch {
	case own != "":
		s.Intent = own
	case application != "":
		s.Intent = application
	case readOnlyDefault || s.suffix:
		s.Intent = ag.ReadOnly
	}
	return nil
}

func parseIntent(p pgwire.Parameter) (ag.Intent, *pgwire.Error) {
	switch strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "").Replace(p.Value)) {
	case "readonly":
		return ag.ReadOnly, nil
	case "readwrite":
		return ag.ReadWrite, nil
	}
	bad := pgwire.Fatal("intent", pgwire.StateInvalidValue, "invalid value for parameter %q: %q", pgwire.Clip(p.Name), pgwire.Clip(p.Value))
	bad.Hint = "Available values: READ_ONLY, READ_WRITE."
	return "", bad
}

// IntentOf returns the intent by the port, else by the startup packet, else by the defaults of the role or the
// database, else READ_WRITE.
func IntentOf(readOnly bool, start *Message, set map[string]string) ag.Intent {
	switch {
	case readOnly:
		return ag.ReadOnly
	case start.Intent != "":
		return start.Intent
	}
	if own := set["coterie.intent"]; own != "" {
		if own, bad := parseIntent(pgwire.Parameter{Name: "coterie.intent", Value: own}); bad == nil {
			return own
		}
	}
	if on, _ := pgwire.ParseBool(set["default_transaction_read_only"]); on && !start.saysReadOnly {
		return ag.ReadOnly
	}
	return ag.ReadWrite
}

// Reads is how far a session's reads may be trusted (docs/internals/safety.md, "Reads"), by its startup parameter
// coterie.reads.
type Reads string

const (
	// ReadsLease is the default: no byte that was read after the lease ended, by this node's clock.
	ReadsLease Reads = "lease"
	// ReadsDurable returns nothing that a failover could undo.
	ReadsDurable Reads = "durable"
	// ReadsConfirmed is as lease, and a majority has confirmed after the read that no other node leads; no clock is
	// trusted.
	ReadsConfirmed Reads = "confirmed"
)

// Guarantees is how far reads can be trusted on a node: which levels beyond the default it can give.
type Guarantees struct{ Durable, Confirmed bool }

// Check returns the error of a session whose reads cannot be trusted that far here; nil: they can.
func (g Guarantees) Check(r Reads, intent ag.Intent) *pgwire.Error {
	switch {
	case r == ReadsConfirmed && intent == ag.ReadOnly:
		bad := pgwire.Fatal("reads", pgwire.StateInvalidValue, "coterie.reads = confirmed is for READ_WRITE sessions: a secondary is behind by its nature")
		bad.Hint = "coterie.reads = durable works on secondaries."
		return bad
	case r == ReadsConfirmed && !g.Confirmed, r == ReadsDurable && !g.Durable:
		return pgwire.Fatal("reads", pgwire.StateNotSupported, "coterie.reads = %s is not available here", r)
	}
	return nil
}

func parseReads(p pgwire.Parameter) (Reads, *pgwire.Error) {
	switch r := Reads(strings.ToLower(p.Value)); r {
	case ReadsLease, ReadsDurable, ReadsConfirmed:
		return r, nil
	}
	bad := pgwire.Fatal("reads", pgwire.StateInvalidValue, "invalid value for parameter %q: %q", pgwire.Clip(p.Name), pgwire.Clip(p.Value))
	bad.Hint = "Available values: lease, durable, confirmed."
	return "", bad
}

// lagUnits are the units of PostgreSQL's own settings. A number without a unit is in milliseconds, as there.
var lagUnits = map[string]time.Duration{
	"": time.Millisecond, "us": time.Microsecond, "ms": time.Millisecond, "s": time.Second, "min": time.Minute, "h": time.Hour, "d": 24 * time.Hour,
}

// maxMaxLag bounds coterie.max_lag.
const maxMaxLag = 24 * time.Hour

// ParseLag reads the largest lag that a reader accepts, from a startup parameter.
func ParseLag(p pgwire.Parameter) (time.Duration, *pgwire.Error) {
	text := strings.TrimSpace(p.Value)
	digits := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyz ")
	unit, known := lagUnits[strings.TrimSpace(text[len(digits):])]
	n, err := strconv.ParseFloat(digits, 64)
	if d := n * float64(unit); err == nil && known && d >= 1 && d <= float64(maxMaxLag) { // false for NaN
		return time.Duration(d), nil
	}
	bad := pgwire.Fatal("max_lag", pgwire.StateInvalidValue, "invalid value for parameter %q: %q", pgwire.Clip(p.Name), pgwire.Clip(p.Value))
	bad.Hint = "A time above 0 and of at most a day, as 500ms, 10s or 2min."
	return 0, bad
}

// memberPrefix begins the names under which the primary knows the group's own members: acknowledgements under such a
// name count.
const memberPrefix = "cot_"

// IsMemberName reports whether a name passes for a member's. PostgreSQL compares names in any case of letters.
func IsMemberName(name string) bool {
	return len(name) >= len(memberPrefix) && strings.EqualFold(name[:len(memberPrefix)], memberPrefix)
}

// RefuseMember returns the error for a stream that would pass for a member of the group.
func RefuseMember() *pgwire.Error {
	bad := pgwire.Fatal("replication", pgwire.StateInvalidAuth, "an application_name that begins with %q is for members of the group", memberPrefix)
	bad.Hint = "Replicas of the group are added with \"coterie join\"; another standby or tool takes another name."
	return bad
}

// CheckStandby checks the application_name of a replication session.
func (s *Message) CheckStandby() *pgwire.Error {
	if s.Replication == pgwire.ReplicationNone {
		return nil
	}
	for _, p := range s.Settings {
		if strings.EqualFold(p.Name, "application_name") && IsMemberName(p.Value) {
			return RefuseMember()
		}
	}
	return nil
}
