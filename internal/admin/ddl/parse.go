package ddl

import (
	"slices"
	"strconv"
	"strings"
)

// Limits of a statement.
const (
	maxName    = 63 // characters of a group's, database's or listener's name, as PostgreSQL's identifiers
	maxServer  = 255
	maxEntries = 64 // of any list
)

// Parse parses exactly one statement, which may end with a semicolon. The error is an *Error.
func Parse(text string) (Statement, error) {
	tokens, bad := lexStatement(text)
	if bad != nil {
		return Statement{}, bad
	}
	p := &parser{tokens: tokens}
	s, bad := p.statement()
	if bad != nil {
		return Statement{}, bad
	}
	for p.tok().isSign(";") {
		p.at++
	}
	if p.tok().kind != tokEnd {
		return Statement{}, p.expected("the end of the statement")
	}
	return s, nil
}

func (p *parser) statement() (Statement, *Error) {
	s := Statement{Pos: p.tok().pos}
	var bad *Error
	if words, _, ok := p.needless(); ok {
		p.at = len(p.tokens) - 1
		s.Action = Needless{words}
		return s, nil
	}
	for _, t := range p.tokens[p.at:] {
		if t.kind == tokWord && strings.HasPrefix(t.text, "@") { // as in T-SQL, no statement of groups has one
			return s, t.pos.errorf(StateNotSupported, "the variable %s is not taken in a statement of the group", clip(t.text)).
				WithHint("write the name itself or the value; IF chooses between statements, and the shell puts one together")
		}
	}
	switch {
	case p.take("CREATE"):
		bad = p.create(&s)
	case p.take("ALTER"):
		bad = p.alter(&s)
	case p.take("DROP"):
		s.Action = Drop{}
		if bad = p.need("AVAILABILITY", "GROUP"); bad == nil {
			s.Group, bad = p.name("the group's name")
		}
	case p.take("DBCC"):
		s.Action, bad = p.traceFlags()
	case p.take("EXPLAIN"):
		s.Action, bad = ExplainFailover{}, p.need("FAILOVER")
	case p.take("VERIFY"):
		s.Action, bad = VerifyRouting{}, p.need("ROUTING")
	case p.take("SCRIPT"):
		s.Action = Script{}
		if p.take("AVAILABILITY", "GROUP") {
			_, bad = p.name("the group's name")
		}
	case p.tok().is("SUSPEND") && !p.ahead(1).is("REPLICA"):
		bad = p.tok().pos.errorf(StateSyntax, "SUSPEND alone would stop data movement of every secondary where the primary is").
			WithHint("SUSPEND REPLICA ON N'name' for one; ALTER AVAILABILITY GROUP ... SUSPEND for all")
	case p.tok().is("SEED"), p.tok().is("CANCEL"), p.tok().is("SUSPEND"), p.tok().is("RESUME"):
		s.Action, bad = p.movement()
	default:
		bad = p.expected("CREATE, ALTER or DROP AVAILABILITY GROUP, ALTER DATABASE, DBCC, EXPLAIN FAILOVER, VERIFY ROUTING or SCRIPT")
	}
	if bad == nil {
		bad = p.manner(&s)
	}
	return s, bad
}

// manner parses WITH NOWAIT and WITH STRICT at the end of a statement.
func (p *parser) manner(s *Statement) *Error {
	if !p.take("WITH") {
		return nil
	}
	open := p.takeSign("(")
	for {
		switch {
		case p.take("NOWAIT"):
			s.NoWait = true
		case p.take("STRICT"):
			s.Strict = true
		default:
			return p.expected(s.manners())
		}
		if !p.takeSign(",") {
			break
		}
	}
	if open {
		return p.needSign(")")
	}
	return nil
}

func (p *parser) create(s *Statement) (bad *Error) {
	if bad = p.need("AVAILABILITY", "GROUP"); bad != nil {
		return bad
	}
	if s.Group, bad = p.name("the group's name"); bad != nil {
		return bad
	}
	var c Create
	if p.take("WITH") {
		if c.Options, bad = p.optionList(InGroup, true); bad != nil {
			return bad
		}
	}
	for _, o := range c.Options {
		if o.Name == "DISTRIBUTED" {
			return refusal(o.pos, mustOption(InGroup, "DISTRIBUTED"))
		}
	}
	if p.tok().is("AVAILABILITY") {
		return refusal(p.tok().pos, mustOption(InGroup, "DISTRIBUTED"))
	}
	if bad = p.need("FOR"); bad != nil {
		return bad
	}
	if p.take("DATABASE") {
		if c.Databases, bad = p.databases(); bad != nil {
			return bad
		}
	}
	if bad = p.need("REPLICA", "ON"); bad != nil {
		return bad
	}
	if c.Replicas, bad = p.replicas(true); bad != nil {
		return bad
	}
	if p.take("LISTENER") {
		l, bad := p.listener()
		if bad != nil {
			return bad
		}
		c.Listener = &l
	}
	s.Action = c
	return nil
}

func (p *parser) databases() ([]string, *Error) {
	var out []string
	for {
		db, bad := p.name("a database's name")
		if bad != nil {
			return nil, bad
		}
		if out = append(out, db); len(out) > maxEntries {
			return nil, p.tooMany("databases")
		}
		if !p.takeSign(",") {
			return out, nil
		}
	}
}

// replicas parses servers with their options: of new replicas, or the options to change, of which each has one.
func (p *parser) replicas(creating bool) ([]Replica, *Error) {
	var out []Replica
	for {
		r, bad := p.replica(creating)
		if bad != nil {
			return nil, bad
		}
		if !creating && len(r.Options)+len(r.Secondary)+len(r.Primary) == 0 {
			return nil, p.expectedOption()
		}
		if slices.ContainsFunc(out, func(x Replica) bool { return !creating && ReplicaID(x.Server) == ReplicaID(r.Server) }) {
			return nil, r.pos.messagef(35282, "replica %s is given twice", Literal(clip(r.Server)))
		}
		if out = append(out, r); len(out) > 10 {
			return nil, r.pos.messagef(35233, "a group has at most its primary, eight secondaries and a witness")
		}
		if !p.takeSign(",") {
			return out, nil
		}
	}
}

func (p *parser) alter(s *Statement) (bad *Error) {
	if p.take("DATABASE") {
		return p.setHADR(s)
	}
	if bad = p.need("AVAILABILITY", "GROUP"); bad != nil {
		return bad
	}
	if s.Group, bad = p.name("the group's name"); bad != nil {
		return bad
	}
	s.Action, bad = p.alteration()
	return bad
}

const alterations = "SET, RESET PARAMETER, SET HBA, RESET HBA, ADD, MODIFY, REMOVE, JOIN, GRANT, DENY, FAILOVER, FORCE_FAILOVER_ALLOW_DATA_LOSS, RESTART LISTENER, " +
	"SEED REPLICA, CANCEL SEEDING, SUSPEND, RESUME or OFFLINE"

func (p *parser) alteration() (Action, *Error) {
	here := p.tok().pos
	if a, is, bad := p.given(); is {
		return a, bad
	}
	switch {
	case p.take("SET"):
		return p.setOptions()
	case p.tok().is("ADD"), p.tok().is("MODIFY"), p.tok().is("REMOVE"):
		return p.parts()
	case p.take("JOIN"):
		if p.tok().is("AVAILABILITY") {
			return nil, refusal(here, mustOption(InGroup, "DISTRIBUTED"))
		}
		return p.join()
	case p.take("GRANT"):
		return Consent{}, p.need("CREATE", "ANY", "DATABASE")
	case p.take("DENY"):
		return Consent{Deny: true}, p.need("CREATE", "ANY", "DATABASE")
	case p.take("FAILOVER"):
		return p.failover(false)
	case p.take("FORCE_FAILOVER_ALLOW_DATA_LOSS"):
		return p.failover(true)
	case p.take("RESTART", "LISTENER"):
		if t := p.tok(); t.kind != tokString && t.kind != tokWord && t.kind != tokName {
			return nil, p.expected("a listener's name, as N'DemoAG-L'")
		}
		name, bad := p.server()
		return RestartListener{name}, bad
	case p.take("OFFLINE"):
		return Offline{}, nil
	case p.tok().is("SEED"), p.tok().is("CANCEL"), p.tok().is("SUSPEND"), p.tok().is("RESUME"):
		return p.movement()
	}
	return nil, p.expected(alterations)
}

func (p *parser) join() (Action, *Error) {
	var j Join
	if p.take("REPLICA") {
		bad := p.need("ON")
		if bad == nil {
			j.Server, bad = p.server()
		}
		if bad != nil {
			return nil, bad
		}
	}
	if !p.tok().is("WITH") || !p.ahead(1).isSign("(") || !p.ahead(2).is("CLUSTER_TYPE") {
		return j, nil
	}
	p.at += 3
	if bad := p.needSign("="); bad != nil {
		return nil, bad
	}
	for _, w := range []string{"WSFC", "EXTERNAL", "NONE"} {
		if p.take(w) {
			j.ClusterType = w
			return j, p.needSign(")")
		}
	}
	return nil, p.expected("WSFC, EXTERNAL or NONE")
}

func (p *parser) failover(force bool) (Action, *Error) {
	f := Failover{Force: force, Now: force && p.take("NOW")}
	if !p.take("TO") {
		return f, nil
	}
	to, bad := p.server()
	f.To = to
	return f, bad
}

// movement parses SEED, CANCEL SEEDING, SUSPEND and RESUME.
func (p *parser) movement() (Action, *Error) {
	switch {
	case p.take("SEED"):
		if bad := p.need("REPLICA"); bad != nil {
			return nil, bad
		}
		p.take("ON")
		server, bad := p.server()
		return Seed{server}, bad
	case p.take("CANCEL"):
		if bad := p.need("SEEDING"); bad != nil {
			return nil, bad
		}
		p.take("ON")
		server, bad := p.server()
		return CancelSeeding{server}, bad
	}
	suspend := p.tok().is("SUSPEND")
	p.at++
	server := ""
	if p.take("REPLICA") {
		p.take("ON")
		var bad *Error
		if server, bad = p.server(); bad != nil {
			return nil, bad
		}
	}
	if suspend {
		return Suspend{Server: server}, nil
	}
	return Resume{Server: server}, nil
}

func (p *parser) setOptions() (Action, *Error) {
	if p.tok().isSign("(") && p.ahead(1).is("ROLE") {
		p.at += 2
		bad := p.needSign("=")
		if bad == nil {
			bad = p.need("SECONDARY")
		}
		if bad == nil {
			bad = p.needSign(")")
		}
		return SetSecondary{}, bad
	}
	list, bad := p.optionList(InGroup, false)
	return Set{list}, bad
}

// parts parses ADD, MODIFY and REMOVE of databases, replicas and listeners.
func (p *parser) parts() (Action, *Error) {
	verb := strings.ToUpper(p.tok().text)
	p.at++
	switch {
	case verb != "MODIFY" && p.take("DATABASE"):
		list, bad := p.databases()
		if verb == "REMOVE" {
			return RemoveDatabase{list}, bad
		}
		return AddDatabase{list}, bad
	case p.take("REPLICA"):
		return p.replicaPart(verb)
	case p.take("LISTENER"):
		return p.listenerPart(verb)
	case p.tok().is("AVAILABILITY"):
		return nil, refusal(p.tok().pos, mustOption(InGroup, "DISTRIBUTED"))
	}
	if verb == "MODIFY" {
		return nil, p.expected("REPLICA ON or LISTENER")
	}
	return nil, p.expected("DATABASE, REPLICA ON or LISTENER")
}

func (p *parser) replicaPart(verb string) (Action, *Error) {
	if bad := p.need("ON"); bad != nil {
		return nil, bad
	}
	if verb == "REMOVE" {
		list, bad := p.servers()
		return RemoveReplica{list}, bad
	}
	list, bad := p.replicas(verb == "ADD")
	if bad != nil {
		return nil, bad
	}
	if verb == "ADD" {
		return AddReplica{list}, nil
	}
	return ModifyReplica{list}, nil
}

func (p *parser) servers() (out []string, bad *Error) {
	for {
		server, bad := p.server()
		if bad != nil {
			return nil, bad
		}
		if out = append(out, server); len(out) > maxEntries {
			return nil, p.tooMany("replicas")
		}
		if !p.takeSign(",") {
			return out, nil
		}
	}
}

func (p *parser) listenerPart(verb string) (Action, *Error) {
	switch verb {
	case "ADD":
		l, bad := p.listener()
		return AddListener{l}, bad
	case "REMOVE":
		name, bad := p.server()
		return RemoveListener{name}, bad
	}
	m, bad := p.listenerChange()
	return m, bad
}

func (p *parser) setHADR(s *Statement) *Error {
	db, bad := p.name("a database's name")
	if bad == nil {
		bad = p.need("SET", "HADR")
	}
	if bad != nil {
		return bad
	}
	switch {
	case p.take("AVAILABILITY", "GROUP"):
		if bad := p.needSign("="); bad != nil {
			return bad
		}
		s.Action = JoinDatabase{db}
		s.Group, bad = p.name("the group's name")
		return bad
	case p.take("OFF"):
		s.Action = LeaveDatabase{db}
	case p.take("SUSPEND"):
		s.Action = Suspend{Database: db}
	case p.take("RESUME"):
		s.Action = Resume{Database: db}
	default:
		return p.expected("AVAILABILITY GROUP =, OFF, SUSPEND or RESUME")
	}
	return nil
}

// traceFlagNames are the supported flags, each with the option for which it is an alias.
var traceFlagNames = map[int]string{9567: "SEED_COMPRESSION", 9592: "LOG_COMPRESSION", 1462: "LOG_COMPRESSION"}

func (p *parser) traceFlags() (Action, *Error) {
	var f TraceFlags
	switch {
	case p.take("TRACEON"):
		f.Verb = "ON"
	case p.take("TRACEOFF"):
		f.Verb = "OFF"
	case p.take("TRACESTATUS"):
		f.Verb = "STATUS"
		if !p.tok().isSign("(") {
			return f, nil
		}
	default:
		return nil, p.expected("TRACEON, TRACEOFF or TRACESTATUS")
	}
	if bad := p.needSign("("); bad != nil {
		return nil, bad
	}
	if f.Verb == "STATUS" && p.takeSign(")") {
		return f, nil
	}
	for {
		negative := p.takeSign("-")
		t := p.tok()
		n, err := strconv.Atoi(t.text)
		if t.kind != tokNumber || err != nil {
			return nil, p.expected("a trace flag's number")
		}
		p.at++
		_, known := traceFlagNames[n]
		switch {
		case negative && n == 1:
			f.Global = true
		case negative || !known:
			return nil, t.pos.messagef(2520, "trace flag %d means nothing here", n).
				WithHint("9592 and 1462 are other names of LOG_COMPRESSION, 9567 of SEED_COMPRESSION")
		case !slices.Contains(f.Flags, n):
			f.Flags = append(f.Flags, n)
		}
		if !p.takeSign(",") {
			break
		}
	}
	if len(f.Flags) == 0 && f.Verb != "STATUS" {
		return nil, p.expected("a trace flag's number")
	}
	return f, p.needSign(")")
}
