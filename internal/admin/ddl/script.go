package ddl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
)

// ScriptOf returns the statements that create the group on nodes without one: CREATE, to be run on the node with the
// data, JOIN for each other replica, the settings of PostgreSQL, and the rules for logins. Executing them gives the
// same configuration.
func ScriptOf(g ag.Group) []Statement {
	c := Create{Databases: g.Options.Databases}
	for _, o := range options {
		if o.Place != InGroup || o.get == nil {
			continue
		}
		if v, ok := o.get(g, ag.Replica{}); ok {
			c.Options = append(c.Options, Setting{Name: o.Name, Value: v})
		}
	}
	for _, r := range g.Replicas {
		if r.Part() {
			c.Replicas = append(c.Replicas, replicaOf(g, r))
		}
	}
	for _, l := range g.Options.Listeners {
		x := Listener{Name: l.Name, Port: l.Port}
		for _, a := range l.Addresses {
			x.Addresses = append(x.Addresses, address(a))
		}
		c.Listener = &x
	}
	return slices.Concat([]Statement{{Group: g.Name, Action: c}}, parametersOf(g), rulesOf(g))
}

// replicaOf returns a replica with every option whose value is not the default.
func replicaOf(g ag.Group, r ag.Replica) Replica {
	out := Replica{Server: string(r.ID)}
	for _, o := range options {
		if o.Place == InGroup || o.get == nil {
			continue
		}
		v, ok := o.get(g, r)
		if !ok {
			continue
		}
		s := Setting{Name: o.Name, Value: v}
		switch o.Place {
		case InSecondary:
			out.Secondary = append(out.Secondary, s)
		case InPrimary:
			out.Primary = append(out.Primary, s)
		default:
			out.Options = append(out.Options, s)
		}
	}
	if out.Options == nil {
		out.Options = []Setting{{Name: "AVAILABILITY_MODE", Value: word(string(r.AvailabilityMode))}}
	}
	return out
}

// ScriptText returns the script of a group. The statements that each other replica runs are in comments.
func ScriptText(g ag.Group) string {
	var b strings.Builder
	for _, s := range ScriptOf(g) {
		b.WriteString(s.String() + ";\n")
	}
	for _, name := range g.ParameterNames() {
		if MayBeSecret(name) {
			b.WriteString("-- the setting " + name + " of PostgreSQL is left out, since its value may be secret\n")
		}
	}
	for _, r := range g.Replicas {
		if r.Part() && r.HasData() {
			b.WriteString("-- on " + string(r.ID) + ", unless it runs the statement above: ALTER AVAILABILITY GROUP " + Brackets(g.Name) + " JOIN;\n")
			if r.Options.NoSeeding {
				b.WriteString("-- on " + string(r.ID) + ": ALTER AVAILABILITY GROUP " + Brackets(g.Name) + " DENY CREATE ANY DATABASE;\n")
			}
		}
	}
	return b.String()
}

// Shown is an option with its present value.
type Shown struct {
	Option string `json:"option"`
	Place  Place  `json:"place"`
	Value  string `json:"value"`
	Set    bool   `json:"set"` // false: the default
}

// Show returns the options of the group or, if r is not nil, of that replica.
func Show(g ag.Group, r *ag.Replica) []Shown {
	var out []Shown
	for _, o := range options {
		if (o.Place == InGroup) != (r == nil) || o.get == nil {
			continue
		}
		var of ag.Replica
		if r != nil {
			of = *r
		}
		v, set := o.get(g, of)
		s := Shown{Option: o.Name, Place: o.Place, Value: o.Default, Set: set}
		if set {
			s.Value = v.String()
			if v.Form == Text {
				s.Value = v.Text
			}
		}
		out = append(out, s)
	}
	return out
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

func (m ModifyListener) text() string {
	name := Literal(m.Listener.Name)
	switch {
	case m.Listener.Port != 0:
		return fmt.Sprintf("%s (PORT = %d)", name, m.Listener.Port)
	case m.Remove:
		return name + " (REMOVE IP (" + Literal(m.Listener.Addresses[0].IP) + "))"
	}
	return name + " (ADD IP " + m.Listener.Addresses[0].text() + ")"
}

// list returns the entries of a list as text, with commas between them.
func list[T any](entries []T, text func(T) string) string {
	var out []string
	for _, e := range entries {
		out = append(out, text(e))
	}
	return strings.Join(out, ", ")
}

func (a Address) text() string {
	if a.Mask == "" {
		return "(" + Literal(a.IP) + ")"
	}
	return "(" + Literal(a.IP) + ", " + Literal(a.Mask) + ")"
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

// Why returns the reason for which a statement is not needed.
func (n Needless) Why() string {
	for _, x := range needless {
		if x.words == n.Words {
			return x.why
		}
	}
	return ""
}

// NewSetting returns the setting of an option to a value as it is written in a statement. A text is taken as it is, and
// quoted where it is written: it is one of the option's words, in upper or lower case, or else a string. A text that
// goes on behind the value is refused, so that no value adds anything to a statement. The error is an *Error.
func NewSetting(place Place, name, value string) (Setting, error) {
	o, ok := findOption(place, name)
	switch {
	case !ok:
		return Setting{}, errorf(StateUndefined, "%s is not an option here", Literal(clip(name))).WithHint("options are %s", oneOf(names(place, false)))
	case o.OnlyNew:
		return Setting{}, errorf(StateWrongState, "%s can be given to CREATE AVAILABILITY GROUP only", o.Name)
	case o.Form == Text && !slices.ContainsFunc(o.Words, func(w string) bool { return strings.EqualFold(w, value) }):
		value = Literal(value)
	}
	tokens, bad := lex(value)
	if bad != nil {
		return Setting{}, bad
	}
	p := &parser{tokens: tokens}
	s := Setting{Name: o.Name}
	if s.Value, bad = p.value(o); bad == nil && p.tok().kind != tokEnd {
		bad = p.expected("the end of the value of " + o.Name)
	}
	if bad != nil {
		return Setting{}, bad
	}
	return s, nil
}

// NewRoutes returns the setting of READ_ONLY_ROUTING_LIST to sets of servers, in their order.
func NewRoutes(list [][]string) Setting {
	return Setting{Name: "READ_ONLY_ROUTING_LIST", Value: Value{Form: Routes, List: list}}
}

// Checked returns the statement as the parser reads its text, with every limit that the language has for a text. The
// error is an *Error. A statement that was put together and that the parser reads as another one is refused.
func (s Statement) Checked() (Statement, error) {
	read, err := Parse(s.String())
	if err != nil {
		return Statement{}, err
	}
	if fmt.Sprintf("%T", read.Action) != fmt.Sprintf("%T", s.Action) || !read.Equal(s) {
		return Statement{}, errorf(StateSyntax, "the statement means something else when it is read: %s", clip(s.Redacted()))
	}
	return read, nil
}

// Owns reports whether a statement that begins like text belongs to this language, whatever follows.
func Owns(text string) bool {
	tokens, bad := lex(text)
	if bad != nil {
		return false
	}
	p := parser{tokens: tokens}
	if _, _, needless := p.needless(); needless {
		return true
	}
	switch {
	case p.tok().is("DBCC"), p.tok().is("SCRIPT"):
		return true
	case p.tok().is("VERIFY"), p.tok().is("SEED"), p.tok().is("CANCEL"), p.tok().is("SUSPEND"), p.tok().is("RESUME"):
		return true
	case p.tok().is("EXPLAIN"):
		return p.ahead(1).is("FAILOVER")
	case p.tok().is("CREATE"), p.tok().is("DROP"):
		return p.ahead(1).is("AVAILABILITY")
	case p.tok().is("ALTER"):
		return p.ahead(1).is("AVAILABILITY") || p.ahead(1).is("DATABASE")
	}
	return false
}
