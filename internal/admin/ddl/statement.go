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
	// SetHBA gives the listeners of all nodes their rules for logins, in lines of pg_hba.conf, or without lines none.
	SetHBA struct{ Lines []string }
	// AddDatabase registers databases, and creates those that do not exist.
	AddDatabase struct{ Names []string }
	// RemoveDatabase removes databases from the register; they themselves stay.
	RemoveDatabase struct{ Names []string }
	// AddReplica makes joined nodes replicas of the group.
	AddReplica struct{ Replicas []Replica }
	// ModifyReplica changes options of replicas.
	ModifyReplica struct{ Replicas []Replica }
	// RemoveReplica removes replicas from the group; their nodes stay joined.
	RemoveReplica struct{ Servers []string }
	// Join makes Server, or the node on which it runs, a copy of the group that it was added to. ClusterType has no
	// effect.
	Join struct{ Server, ClusterType string }
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
	// ModifyListener adds an address to a listener, removes one, or changes its port.
	ModifyListener struct {
		Listener Listener
		Remove   bool
	}
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
	// Needless is a statement on something that a group of SQL Server needs and this one does not.
	Needless struct{ Words string }
)

func (Create) action()          {}
func (Drop) action()            {}
func (Set) action()             {}
func (SetParameters) action()   {}
func (SetHBA) action()          {}
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
func (Needless) action()        {}

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
	case Needless:
		return a.Words
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
	case SetHBA:
		return a.String()
	case AddDatabase:
		return "ADD DATABASE " + list(a.Names, Brackets)
	case RemoveDatabase:
		return "REMOVE DATABASE " + list(a.Names, Brackets)
	case AddReplica:
		return "ADD REPLICA ON " + list(a.Replicas, Replica.text)
	case ModifyReplica:
		return "MODIFY REPLICA ON " + list(a.Replicas, Replica.text)
	case RemoveReplica:
		return "REMOVE REPLICA ON " + list(a.Servers, Literal)
	case Join:
		if a.ClusterType != "" {
			return "JOIN" + onServer(a.Server) + " WITH (CLUSTER_TYPE = " + a.ClusterType + ")"
		}
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
		return "MODIFY LISTENER " + a.text()
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
	case ExplainFailover, VerifyRouting, Script, Needless:
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

// The privileges: those of the roles coterie_viewer, coterie_operator and coterie_admin, and that of superusers.
const (
	MayNothing Privilege = iota
	MayLook
	MayOperate
	MayAdminister
	MayConfigureServers // settings of PostgreSQL can run programs on the servers, and rules for logins let superusers in
)

// Needs returns the privilege that is needed to run the statement.
func (s Statement) Needs() Privilege {
	if s.Kind() == KindReport {
		return MayLook
	}
	switch s.Action.(type) {
	case Failover, Suspend, Resume, Seed, CancelSeeding, RestartListener:
		return MayOperate
	case SetParameters, SetHBA:
		return MayConfigureServers
	default:
		return MayAdminister
	}
}

// Verb returns the statement's first words, as a command tag.
func (s Statement) Verb() string {
	words := strings.Fields(s.text())
	if n, ok := s.Action.(Needless); ok {
		return n.Words
	}
	n := map[string]int{"CREATE": 3, "ALTER": 3, "DROP": 3, "DBCC": 2}[words[0]]
	if words[0] == "ALTER" && words[1] == "DATABASE" {
		n = 2
	}
	return strings.Join(words[:min(max(n, 1), len(words))], " ")
}

// onPrimary reports whether the statement must run on the primary.
func (s Statement) onPrimary() bool {
	switch s.Action.(type) {
	case Set, SetParameters, SetHBA, AddDatabase, RemoveDatabase, AddReplica, ModifyReplica, RemoveReplica, AddListener, ModifyListener, RestartListener, RemoveListener:
		return true
	default:
		return false
	}
}

// needless are the beginnings of statements on what this group does not need, with the reasons.
var needless = []struct{ words, why string }{
	{"CREATE ENDPOINT", becauseEndpoint},
	{"ALTER ENDPOINT", becauseEndpoint},
	{"DROP ENDPOINT", becauseEndpoint},
	{"GRANT CONNECT ON ENDPOINT", becauseEndpoint},
	{"CREATE CERTIFICATE", becauseCertificate},
	{"ALTER CERTIFICATE", becauseCertificate},
	{"DROP CERTIFICATE", becauseCertificate},
	{"BACKUP CERTIFICATE", becauseCertificate},
	{"CREATE MASTER KEY", becauseCertificate},
	{"BACKUP MASTER KEY", becauseCertificate},
	{"DROP MASTER KEY", becauseCertificate},
	{"CREATE LOGIN", becauseLogin},
	{"ALTER LOGIN", becauseLogin},
	{"DROP LOGIN", becauseLogin},
	{"CREATE USER", becauseLogin},
	{"DROP USER", becauseLogin},
	{"GRANT VIEW SERVER STATE", becauseGrant},
	{"GRANT ALTER ANY AVAILABILITY GROUP", becauseGrant},
	{"GRANT CONTROL ON AVAILABILITY GROUP", becauseGrant},
	{"ALTER EVENT SESSION", becauseEvents},
	{"CREATE EVENT SESSION", becauseEvents},
	{"DROP EVENT SESSION", becauseEvents},
}

const (
	becauseEndpoint    = "every node has its endpoint since coterie init and coterie join; sys.database_mirroring_endpoints shows it"
	becauseCertificate = "nodes authenticate by certificates of the group's own authority, which coterie init and coterie join make"
	becauseLogin       = "nodes authenticate by certificates, and need no logins. For a client: CREATE ROLE name LOGIN PASSWORD '...', in any other database"
	becauseGrant       = "roles decide: GRANT coterie_viewer, coterie_operator or coterie_admin TO name, in any other database"
	becauseEvents      = "coterie.events and coterie.decisions record what an event session would"
)

// needless returns the words and the reason if the statement is about something that this group does not need.
func (p *parser) needless() (words, why string, ok bool) {
	for _, n := range needless {
		list, i := strings.Fields(n.words), 0
		for i < len(list) && p.ahead(i).is(list[i]) {
			i++
		}
		if i == len(list) {
			return n.words, n.why, true
		}
	}
	return "", "", false
}
