package ddl

import (
	"fmt"
	"strings"
)

// Statement is one statement of the language. String returns its canonical form, which parses to an equal statement.
type Statement struct {
	Pos    Pos
	Group  string // as typed; "": the group of the node
	Action Action
	NoWait bool // return as soon as it is accepted, without waiting for its effect
	Strict bool // refuse if another node must act, instead of forwarding it
}

// Action is the effect of a statement. The set of types is closed.
//
//sumtype:decl
type Action interface{ action() }

// The actions.
type (
	// Create is CREATE AVAILABILITY GROUP.
	Create struct {
		Options   []Setting
		Databases []string
		Replicas  []Replica
		Listener  *Listener
	}
	// Drop is DROP AVAILABILITY GROUP.
	Drop struct{}
	// Set changes options of the group.
	Set struct{ Options []Setting }
	// SetParameters sets settings of PostgreSQL for the servers of all replicas or for that of Server. With Reset it
	// takes them back, and their values are empty.
	SetParameters struct {
		Parameters []Parameter
		Server     string
		Reset      bool
	}
	// AddDatabase registers a database, and creates it if it does not exist.
	AddDatabase struct{ Name string }
	// RemoveDatabase removes a database from the register; the database itself stays.
	RemoveDatabase struct{ Name string }
	// AddReplica makes a joined node a replica of the group.
	AddReplica struct{ Replica Replica }
	// ModifyReplica changes options of a replica.
	ModifyReplica struct{ Replica Replica }
	// RemoveReplica removes a replica from the group; its node stays joined.
	RemoveReplica struct{ Server string }
	// Join makes Server, or the node on which it runs, a copy of the group that it was added to.
	Join struct{ Server string }
	// Consent is GRANT CREATE ANY DATABASE or, with Deny, DENY: whether the node on which it runs may be seeded.
	Consent struct{ Deny bool }
	// Failover makes To, or the node on which it runs, the primary; Force accepts the loss of commits.
	Failover struct {
		To    string
		Force bool
		Now   bool // with Force: it opens although the old primary may still answer clients
	}
	// AddListener adds a client address.
	AddListener struct{ Listener Listener }
	// ModifyListener adds an address to a listener, or changes its port.
	ModifyListener struct{ Listener Listener }
	// RestartListener makes every node reload the configuration of its client ports.
	RestartListener struct{ Name string }
	// RemoveListener removes a client address.
	RemoveListener struct{ Name string }
	// SetSecondary is SET (ROLE = SECONDARY).
	SetSecondary struct{}
	// Offline is OFFLINE.
	Offline struct{}
	// Seed makes a new copy of the data on a replica.
	Seed struct{ Server string }
	// CancelSeeding stops the copy that is being made.
	CancelSeeding struct{ Server string }
	// Suspend stops data movement to Server or to the node on which it runs; on the primary, to all replicas.
	Suspend struct{ Server, Database string }
	// Resume continues data movement.
	Resume struct{ Server, Database string }
	// JoinDatabase is ALTER DATABASE ... SET HADR AVAILABILITY GROUP.
	JoinDatabase struct{ Database string }
	// LeaveDatabase is ALTER DATABASE ... SET HADR OFF.
	LeaveDatabase struct{ Database string }
	// TraceFlags is DBCC TRACEON, TRACEOFF or TRACESTATUS: aliases of the compression options.
	TraceFlags struct {
		Verb   string // ON, OFF or STATUS
		Flags  []int
		Global bool
	}
	// ExplainFailover shows the outcome of an automatic failover at this moment.
	ExplainFailover struct{}
	// VerifyRouting shows where sessions of each intent would be routed at this moment.
	VerifyRouting struct{}
	// Script prints the statements that create this group.
	Script struct{}
)

func (Create) action()          {}
func (Drop) action()            {}
func (Set) action()             {}
func (SetParameters) action()   {}
func (AddDatabase) action()     {}
func (RemoveDatabase) action()  {}
func (AddReplica) action()      {}
func (ModifyReplica) action()   {}
func (RemoveReplica) action()   {}
func (Join) action()            {}
func (Consent) action()         {}
func (Failover) action()        {}
func (AddListener) action()     {}
func (ModifyListener) action()  {}
func (RestartListener) action() {}
func (RemoveListener) action()  {}
func (SetSecondary) action()    {}
func (Offline) action()         {}
func (Seed) action()            {}
func (CancelSeeding) action()   {}
func (Suspend) action()         {}
func (Resume) action()          {}
func (JoinDatabase) action()    {}
func (LeaveDatabase) action()   {}
func (TraceFlags) action()      {}
func (ExplainFailover) action() {}
func (VerifyRouting) action()   {}
func (Script) action()          {}

// Setting is an option with its value. A flag such as BASIC has no value.
type Setting struct {
	Name  string
	Value Value
	pos   Pos
}

// Value is the value of an option: a word, a number, a string or a routing list.
type Value struct {
	Form Form
	Text string
	List [][]string
}

// Form is the kind of a Value.
type Form int

// The forms. Flag has no value; Codec is a word with an optional level, as ZSTD:3.
const (
	Flag Form = iota
	Word
	Number
	Text
	Codec
	Routes
)

// Replica is a server with its options, by place: its own, those of its secondary role, those of its primary role.
type Replica struct {
	Server                      string
	Options, Secondary, Primary []Setting
	pos                         Pos
}

// Listener is a client address in a statement.
type Listener struct {
	Name      string
	DHCP      bool
	Addresses []Address
	Port      int // 0: not given
	pos       Pos
}

// Address is one address of a listener; Mask is empty for IPv6.
type Address struct{ IP, Mask string }

// Equal reports whether two statements are the same, apart from their places in the text.
func (s Statement) Equal(t Statement) bool { return s.String() == t.String() }

// String returns the statement in canonical form, without a semicolon.
func (s Statement) String() string {
	text := s.text()
	switch {
	case s.NoWait && s.Strict:
		text += " WITH (NOWAIT, STRICT)"
	case s.NoWait:
		text += " WITH NOWAIT"
	case s.Strict:
		text += " WITH STRICT"
	}
	return text
}

func (s Statement) text() string {
	name := Brackets(s.Group)
	switch a := s.Action.(type) {
	case Create:
		return "CREATE AVAILABILITY GROUP " + name + a.clauses()
	case Drop:
		return "DROP AVAILABILITY GROUP " + name
	case Suspend:
		if a.Database != "" {
			return "ALTER DATABASE " + Brackets(a.Database) + " SET HADR SUSPEND"
		}
	case Resume:
		if a.Database != "" {
			return "ALTER DATABASE " + Brackets(a.Database) + " SET HADR RESUME"
		}
	case JoinDatabase:
		return "ALTER DATABASE " + Brackets(a.Database) + " SET HADR AVAILABILITY GROUP = " + name
	case LeaveDatabase:
		return "ALTER DATABASE " + Brackets(a.Database) + " SET HADR OFF"
	case TraceFlags:
		return a.text()
	case ExplainFailover:
		return "EXPLAIN FAILOVER"
	case VerifyRouting:
		return "VERIFY ROUTING"
	case Script:
		return "SCRIPT"
	default:
	}
	if s.Group == "" {
		return clause(s.Action)
	}
	return "ALTER AVAILABILITY GROUP " + name + " " + clause(s.Action)
}

// clause returns the part of ALTER AVAILABILITY GROUP that follows the name.
func clause(action Action) string {
	switch a := action.(type) {
	case Set:
		return "SET (" + settings(a.Options) + ")"
	case SetParameters:
		return a.text()
	case AddDatabase:
		return "ADD DATABASE " + Brackets(a.Name)
	case RemoveDatabase:
		return "REMOVE DATABASE " + Brackets(a.Name)
	case AddReplica:
		return "ADD REPLICA ON " + a.Replica.text()
	case ModifyReplica:
		return "MODIFY REPLICA ON " + a.Replica.text()
	case RemoveReplica:
		return "REMOVE REPLICA ON " + Literal(a.Server)
	case Join:
		return "JOIN" + onServer(a.Server)
	case Consent:
		if a.Deny {
			return "DENY CREATE ANY DATABASE"
		}
		return "GRANT CREATE ANY DATABASE"
	case Failover:
		return a.text()
	case AddListener:
		return "ADD LISTENER " + a.Listener.text()
	case ModifyListener:
		return "MODIFY LISTENER " + a.Listener.change()
	case RestartListener:
		return "RESTART LISTENER " + Literal(a.Name)
	case RemoveListener:
		return "REMOVE LISTENER " + Literal(a.Name)
	case SetSecondary:
		return "SET (ROLE = SECONDARY)"
	case Offline:
		return "OFFLINE"
	case Seed:
		return "SEED REPLICA ON " + Literal(a.Server)
	case CancelSeeding:
		return "CANCEL SEEDING ON " + Literal(a.Server)
	case Suspend:
		return "SUSPEND" + onServer(a.Server)
	case Resume:
		return "RESUME" + onServer(a.Server)
	default:
		return fmt.Sprintf("%T", action)
	}
}

func onServer(server string) string {
	if server == "" {
		return ""
	}
	return " REPLICA ON " + Literal(server)
}

func (f Failover) text() string {
	t := "FAILOVER"
	if f.Force {
		t = "FORCE_FAILOVER_ALLOW_DATA_LOSS"
	}
	if f.Now {
		t += " NOW"
	}
	if f.To != "" {
		t += " TO " + Literal(f.To)
	}
	return t
}

func (f TraceFlags) text() string {
	var flags []string
	for _, n := range f.Flags {
		flags = append(flags, fmt.Sprint(n))
	}
	if f.Global {
		flags = append(flags, "-1")
	}
	return "DBCC TRACE" + f.Verb + " (" + strings.Join(flags, ", ") + ")"
}

func (c Create) clauses() string {
	var b strings.Builder
	if len(c.Options) > 0 {
		b.WriteString("\n    WITH (" + settings(c.Options) + ")")
	}
	b.WriteString("\n    FOR ")
	for i, db := range c.Databases {
		b.WriteString([]string{"DATABASE ", ", "}[min(i, 1)] + Brackets(db))
	}
	if len(c.Databases) > 0 {
		b.WriteString("\n    ")
	}
	for i, r := range c.Replicas {
		b.WriteString([]string{"REPLICA ON\n        ", ",\n        "}[min(i, 1)] + r.text())
	}
	if c.Listener != nil {
		b.WriteString("\n    LISTENER " + c.Listener.text())
	}
	return b.String()
}

func settings(list []Setting) string {
	var out []string
	for _, s := range list {
		out = append(out, s.text())
	}
	return strings.Join(out, ", ")
}

func (s Setting) text() string {
	if s.Value.Form == Flag {
		return s.Name
	}
	return s.Name + " = " + s.Value.String()
}

// String returns the value as it is written in a statement.
func (v Value) String() string {
	switch v.Form {
	case Text:
		return Literal(v.Text)
	case Routes:
		if v.Text != "" {
			return v.Text // NONE or DEFAULT
		}
		return routesText(v.List)
	default:
		return v.Text
	}
}

func routesText(list [][]string) string {
	var sets []string
	for _, set := range list {
		var names []string
		for _, n := range set {
			names = append(names, Literal(n))
		}
		text := strings.Join(names, ", ")
		if len(set) != 1 {
			text = "(" + text + ")"
		}
		sets = append(sets, text)
	}
	return "(" + strings.Join(sets, ", ") + ")"
}

func (r Replica) text() string {
	parts := make([]string, 0, len(r.Options)+2)
	for _, o := range r.Options {
		parts = append(parts, o.text())
	}
	if len(r.Secondary) > 0 {
		parts = append(parts, "SECONDARY_ROLE ("+settings(r.Secondary)+")")
	}
	if len(r.Primary) > 0 {
		parts = append(parts, "PRIMARY_ROLE ("+settings(r.Primary)+")")
	}
	if len(parts) == 0 {
		return Literal(r.Server)
	}
	return Literal(r.Server) + " WITH (" + strings.Join(parts, ", ") + ")"
}

func (l Listener) text() string {
	var parts []string
	switch {
	case l.DHCP && len(l.Addresses) > 0:
		parts = append(parts, "WITH DHCP ON "+l.Addresses[0].text())
	case l.DHCP:
		parts = append(parts, "WITH DHCP")
	case len(l.Addresses) > 0:
		var ips []string
		for _, a := range l.Addresses {
			ips = append(ips, a.text())
		}
		parts = append(parts, "WITH IP ("+strings.Join(ips, ", ")+")")
	}
	if l.Port != 0 {
		parts = append(parts, fmt.Sprintf("PORT = %d", l.Port))
	}
	return Literal(l.Name) + " (" + strings.Join(parts, ", ") + ")"
}

func (l Listener) change() string {
	if l.Port != 0 {
		return fmt.Sprintf("%s (PORT = %d)", Literal(l.Name), l.Port)
	}
	return Literal(l.Name) + " (ADD IP " + l.Addresses[0].text() + ")"
}

func (a Address) text() string {
	if a.Mask == "" {
		return "(" + Literal(a.IP) + ")"
	}
	return "(" + Literal(a.IP) + ", " + Literal(a.Mask) + ")"
}

// Kind is the way in which a statement is carried out.
type Kind int

// The kinds: a change of the configuration, an operation on nodes, or a report, which changes nothing.
const (
	KindChange Kind = iota
	KindOperation
	KindReport
)

// Kind returns the way in which the statement is carried out.
func (s Statement) Kind() Kind {
	switch a := s.Action.(type) {
	case Failover, Seed, CancelSeeding, RestartListener:
		return KindOperation
	case ExplainFailover, VerifyRouting, Script:
		return KindReport
	case TraceFlags:
		if a.Verb == "STATUS" {
			return KindReport
		}
	default:
	}
	return KindChange
}

// Privilege is a level of permission. Each includes the ones before it.
type Privilege int

// The privileges: those of the roles coterie_viewer, coterie_operator and coterie_admin.
const (
	MayNothing Privilege = iota
	MayLook
	MayOperate
	MayAdminister
)

// Needs returns the privilege that is needed to run the statement.
func (s Statement) Needs() Privilege {
	if s.Kind() == KindReport {
		return MayLook
	}
	switch s.Action.(type) {
	case Failover, Suspend, Resume, Seed, CancelSeeding, RestartListener:
		return MayOperate
	default:
		return MayAdminister
	}
}

// Verb returns the statement's first words, as a command tag.
func (s Statement) Verb() string {
	words := strings.Fields(s.text())
	n := map[string]int{"CREATE": 3, "ALTER": 3, "DROP": 3, "DBCC": 2}[words[0]]
	if words[0] == "ALTER" && words[1] == "DATABASE" {
		n = 2
	}
	return strings.Join(words[:min(max(n, 1), len(words))], " ")
}

// onPrimary reports whether the statement must run on the primary.
func (s Statement) onPrimary() bool {
	switch s.Action.(type) {
	case Set, SetParameters, AddDatabase, RemoveDatabase, AddReplica, ModifyReplica, RemoveReplica, AddListener, ModifyListener, RestartListener, RemoveListener:
		return true
	default:
		return false
	}
}
