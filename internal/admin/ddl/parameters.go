package ddl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
)

// Limits of the settings of PostgreSQL in a configuration, which every node reads at each change.
const (
	maxParameters     = 200
	maxParameterName  = 127  // bytes
	maxParameterValue = 1000 // bytes
)

// Parameter is a setting of PostgreSQL: its name in lower case, with a prefix and a dot if an extension defines it, and
// its value.
type Parameter struct {
	Name, Value string
	pos         Pos
}

// given parses SET and RESET of what a group gives its nodes. is reports whether it is one of them.
func (p *parser) given() (a Action, is bool, bad *Error) {
	switch {
	case p.take("SET", "PARAMETER"):
		a, bad = p.parameters(false)
	case p.take("RESET", "PARAMETER"):
		a, bad = p.parameters(true)
	case p.take("SET", "HBA"):
		a, bad = p.rules()
	case p.take("RESET", "HBA"):
		a = SetHBA{}
	default:
		return nil, false, nil
	}
	return a, true, bad
}

// parameters parses the settings after SET PARAMETER or RESET PARAMETER.
func (p *parser) parameters(reset bool) (Action, *Error) {
	a := SetParameters{Reset: reset}
	for {
		x := Parameter{pos: p.tok().pos}
		var bad *Error
		if x.Name, bad = p.parameterName(); bad != nil {
			return nil, bad
		}
		if !reset {
			if !p.take("TO") {
				bad = p.needSign("=")
			}
			if bad == nil {
				x.Value, bad = p.parameterValue()
			}
		}
		if bad != nil {
			return nil, bad
		}
		if slices.ContainsFunc(a.Parameters, func(y Parameter) bool { return y.Name == x.Name }) {
			return nil, x.pos.errorf(StateDuplicate, "%s is given twice", x.Name)
		}
		if a.Parameters = append(a.Parameters, x); len(a.Parameters) > maxEntries {
			return nil, p.tooMany("settings")
		}
		if !p.takeSign(",") {
			break
		}
	}
	if !p.take("FOR", "REPLICA") {
		return a, nil
	}
	p.take("ON")
	server, bad := p.server()
	a.Server = server
	return a, bad
}

func (p *parser) parameterName() (string, *Error) {
	start := p.tok().pos
	var parts []string
	for {
		part, bad := p.name("the name of a setting of PostgreSQL")
		if bad != nil {
			return "", bad
		}
		parts = append(parts, strings.ToLower(part))
		if !p.takeSign(".") {
			break
		}
	}
	name := strings.Join(parts, ".")
	if strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' && r != '.' && r != '$'
	}) >= 0 || len(name) > maxParameterName {
		return "", start.errorf(StateInvalid, "%s is no name of a setting: letters, digits, _ and dots, at most %d", Literal(clip(name)), maxParameterName)
	}
	return name, nil
}

// parameterValue parses a string, a word, or a number with an optional unit, as 64MB.
func (p *parser) parameterValue() (string, *Error) {
	t := p.tok()
	if t.kind == tokString {
		if len(t.text) > maxParameterValue {
			return "", t.pos.errorf(StateInvalid, "a value has at most %d bytes", maxParameterValue)
		}
		if bad := printable(t, "a value"); bad != nil {
			return "", bad
		}
		p.at++
		return t.text, nil
	}
	sign := ""
	if p.takeSign("-") {
		sign = "-"
	}
	t = p.tok()
	switch {
	case t.kind == tokNumber:
		p.at++
		if unit := p.tok(); unit.kind == tokWord && unit.from == t.end {
			p.at++
			return sign + t.text + unit.text, nil
		}
		return sign + t.text, nil
	case t.kind == tokWord && sign == "":
		p.at++
		return t.text, nil
	}
	return "", p.expected("a value, as '64MB'")
}

// MayBeSecret reports whether the value of a setting of PostgreSQL may hold a password or a key. Such a value is shown
// to nobody: more people may look at a group than may change it.
func MayBeSecret(name string) bool {
	return slices.ContainsFunc([]string{"command", "passphrase", "conninfo", "password", "secret", "key", "token"}, func(part string) bool {
		return strings.Contains(name, part)
	})
}

// Redacted returns the statement as it may be logged and shown: String with the values left out that may be secret, and
// without what is too long for a log. It need not parse.
func (s Statement) Redacted() string {
	if a, is := s.Action.(SetHBA); is && len(a.Lines) > shownRules {
		a.Lines = append(slices.Clone(a.Lines[:shownRules]), fmt.Sprintf("… and %d more", len(a.Lines)-shownRules))
		s.Action = a
		return s.String()
	}
	a, is := s.Action.(SetParameters)
	if !is {
		return s.String()
	}
	a.Parameters = slices.Clone(a.Parameters)
	for i, x := range a.Parameters {
		if MayBeSecret(x.Name) {
			a.Parameters[i].Value = hidden
		}
	}
	s.Action = a
	return s.String()
}

// hidden stands for a value that may be secret.
const hidden = "…"

// RedactedText returns a text about the statement, such as that of an error, without the values that Redacted leaves
// out.
func (s Statement) RedactedText(text string) string {
	a, _ := s.Action.(SetParameters)
	for _, x := range a.Parameters {
		if MayBeSecret(x.Name) && x.Value != "" {
			text = strings.ReplaceAll(text, x.Value, hidden)
		}
	}
	return text
}

func (a SetParameters) text() string {
	words := []string{"SET PARAMETER "}
	if a.Reset {
		words[0] = "RESET PARAMETER "
	}
	for i, x := range a.Parameters {
		if i > 0 {
			words = append(words, ", ")
		}
		for j, part := range strings.Split(x.Name, ".") {
			if j > 0 {
				words = append(words, ".")
			}
			words = append(words, Brackets(part))
		}
		if !a.Reset {
			words = append(words, " = ", Literal(x.Value))
		}
	}
	if a.Server != "" {
		words = append(words, " FOR REPLICA ", Literal(a.Server))
	}
	return strings.Join(words, "")
}

func (c *change) setParameters(a SetParameters) *Error {
	of, whose := &c.group.Parameters, "the group"
	if a.Server != "" {
		r, ok := member(*c.group, a.Server)
		switch {
		case !ok:
			return c.noReplica(41167, a.Server, c.pos)
		case !r.HasData():
			return c.pos.errorf(StateWrongState, "%s is the witness: it has no PostgreSQL", r.ID)
		}
		of, whose = &r.Options.Parameters, string(r.ID)
	}
	for _, x := range a.Parameters {
		if a.Reset {
			if _, had := (*of)[x.Name]; !had {
				c.notice("%s has no %s already", whose, x.Name)
			}
			delete(*of, x.Name)
			continue
		}
		if *of == nil {
			*of = map[string]string{}
		}
		(*of)[x.Name] = x.Value
	}
	if len(*of) == 0 {
		*of = nil
	}
	if len(*of) > maxParameters {
		return c.pos.errorf(StateInvalid, "%s would have %d settings of PostgreSQL; at most %d are kept", whose, len(*of), maxParameters)
	}
	return nil
}

// parametersOf returns the statements that make the settings of PostgreSQL of a group, without values that may be
// secret.
func parametersOf(g ag.Group) (out []Statement) {
	add := func(of map[string]string, server ag.ReplicaID) {
		var list []Parameter
		for name, value := range of {
			if MayBeSecret(name) {
				continue
			}
			list = append(list, Parameter{Name: name, Value: value})
		}
		slices.SortFunc(list, func(a, b Parameter) int { return strings.Compare(a.Name, b.Name) })
		for some := range slices.Chunk(list, maxEntries) {
			out = append(out, Statement{Group: g.Name, Action: SetParameters{Parameters: some, Server: string(server)}})
		}
	}
	add(g.Parameters, "")
	for _, r := range g.Replicas {
		if r.Part() {
			add(r.Options.Parameters, r.ID)
		}
	}
	return out
}

// Limits of the rules for logins in a configuration, which every node reads at each change.
const (
	maxRuleLines = 500
	maxRuleLine  = 1000     // bytes
	maxRules     = 32 << 10 // bytes, of all lines
)

// shownRules are the lines of rules that a log has.
const shownRules = 4

// rules parses the lines after SET HBA.
func (p *parser) rules() (Action, *Error) {
	var a SetHBA
	size := 0
	if bad := p.needSign("("); bad != nil {
		return nil, bad
	}
	for {
		t := p.tok()
		if t.kind != tokString {
			return nil, p.expected("a rule, as N'hostssl all all 10.0.0.0/8 scram-sha-256'")
		}
		if len(t.text) > maxRuleLine {
			return nil, t.pos.errorf(StateInvalid, "a rule has at most %d bytes", maxRuleLine)
		}
		if bad := printable(token{text: strings.ReplaceAll(t.text, "\t", " "), pos: t.pos}, "a rule"); bad != nil {
			return nil, bad
		}
		p.at++
		a.Lines = append(a.Lines, t.text)
		if size += len(t.text) + 1; size > maxRules || len(a.Lines) > maxRuleLines {
			return nil, t.pos.errorf(StateInvalid, "rules have at most %d lines and %d bytes", maxRuleLines, maxRules)
		}
		if p.takeSign(")") {
			return a, nil
		}
		if bad := p.needSign(","); bad != nil {
			return nil, bad
		}
	}
}

// RulesOf returns SET HBA for rules as a file in pg_hba.conf syntax has them; RESET HBA if there is none.
func RulesOf(text string) SetHBA {
	text = strings.TrimRight(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	if text == "" {
		return SetHBA{}
	}
	return SetHBA{Lines: strings.Split(text, "\n")}
}

// String returns the clause of ALTER AVAILABILITY GROUP.
func (a SetHBA) String() string {
	if len(a.Lines) == 0 {
		return "RESET HBA"
	}
	return "SET HBA (" + list(a.Lines, Literal) + ")"
}

// setHBA changes the rules. Whether they can be read is judged by the node that runs the statement: this package does
// not know the syntax of pg_hba.conf.
func (c *change) setHBA(a SetHBA) *Error {
	c.group.HBA = ""
	if len(a.Lines) > 0 {
		c.group.HBA = strings.Join(a.Lines, "\n") + "\n"
	}
	return nil
}

// rulesOf returns the statement that gives a group its rules; none if it has none. Those of a cluster that was adopted
// may be too long for a statement, or have characters that no statement may have, and are left out.
func rulesOf(g ag.Group) []Statement {
	a := RulesOf(g.HBA)
	s := Statement{Group: g.Name, Action: a}
	if len(a.Lines) == 0 {
		return nil
	}
	if _, err := s.Checked(); err != nil {
		return nil
	}
	return []Statement{s}
}
