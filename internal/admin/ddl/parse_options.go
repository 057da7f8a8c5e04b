package ddl

import (
	"net/netip"
	"strconv"
	"strings"
	"unicode"
)

func mustOption(place Place, name string) Option {
	o, ok := findOption(place, name)
	if !ok {
		panic("ddl: no option " + name) // a mistake in this package
	}
	return o
}

func refusal(pos Pos, o Option) *Error {
	bad := pos.errorf(StateNotSupported, "%s is refused: %s", o.Name, o.Why)
	if o.Name == "DISTRIBUTED" {
		return bad.WithHint("one group may span sites: ASYNCHRONOUS_COMMIT replicas at the other one, and LEASE_PROFILE = WAN")
	}
	return bad
}

// optionList parses ( option [,] option ... ). The commas are optional, as they are in SQL Server's roles.
func (p *parser) optionList(place Place, creating bool) ([]Setting, *Error) {
	if bad := p.needSign("("); bad != nil {
		return nil, bad
	}
	var list []Setting
	for {
		s, bad := p.option(place, creating)
		if bad != nil {
			return nil, bad
		}
		for _, other := range list {
			if other.Name == s.Name {
				return nil, s.pos.errorf(StateSyntax, "%s is given twice", s.Name)
			}
		}
		list = append(list, s)
		p.takeSign(",")
		if p.takeSign(")") {
			return list, nil
		}
	}
}

func (p *parser) option(place Place, creating bool) (Setting, *Error) {
	t := p.tok()
	o, ok := findOption(place, t.text)
	if t.kind != tokWord || !ok || o.OnlyNew && !creating {
		if ok && o.OnlyNew {
			return Setting{}, t.pos.errorf(StateWrongState, "%s can be given to CREATE AVAILABILITY GROUP only", o.Name)
		}
		return Setting{}, p.expected("an option: " + strings.Join(names(place, creating), ", "))
	}
	p.at++
	s := Setting{Name: o.Name, Value: Value{Form: o.Form}, pos: t.pos}
	if o.Form == Flag {
		if o.Name == "CONTAINED" {
			_ = p.take("REUSE_SYSTEM_DATABASES") || p.take("AUTOSEEDING_SYSTEM_DATABASES")
		}
		return s, nil
	}
	bad := p.needSign("=")
	if bad == nil {
		s.Value, bad = p.value(o)
	}
	return s, bad
}

func (p *parser) value(o Option) (Value, *Error) {
	t := p.tok()
	v := Value{Form: o.Form}
	for _, w := range o.Words {
		if t.is(w) {
			p.at++
			v.Text = w
			switch {
			case o.Form == Codec:
				return p.level(v)
			case o.Form == Word && o.Max > 0 && w == o.Words[len(o.Words)-1]:
				return p.argument(v, o)
			}
			if o.Form == Text {
				v.Form = Word
			}
			return v, nil
		}
	}
	switch o.Form {
	case Number:
		return p.numberValue(o)
	case Text:
		if t.kind != tokString {
			return v, p.expected("a string, as N'…'")
		}
		var bad *Error
		v.Text, bad = p.short(t, o.Name, 512)
		return v, bad
	case Routes:
		return p.routes()
	default:
		return v, p.expected(oneOf(o.Words))
	}
}

func oneOf(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// level parses the level of ZSTD:level.
func (p *parser) level(v Value) (Value, *Error) {
	if v.Text != "ZSTD" || !p.takeSign(":") {
		return v, nil
	}
	t := p.tok()
	n, err := strconv.Atoi(t.text)
	if t.kind != tokNumber || err != nil || n < 1 || n > 22 {
		return v, p.expected("a level from 1 to 22")
	}
	p.at++
	v.Text += ":" + strconv.Itoa(n)
	return v, nil
}

// argument parses the number of ADAPTIVE(ms).
func (p *parser) argument(v Value, o Option) (Value, *Error) {
	if !p.takeSign("(") {
		return v, nil
	}
	t := p.tok()
	n, err := strconv.ParseInt(t.text, 10, 64)
	if t.kind != tokNumber || err != nil || n < o.Min || n > o.Max {
		return v, p.expected("a number from " + itoa(o.Min) + " to " + itoa(o.Max))
	}
	p.at++
	v.Text += "(" + itoa(n) + ")"
	return v, p.needSign(")")
}

var units = map[string]int64{"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}

// unitNames are the units of numbers that are written without one, in words.
var unitNames = map[string]string{"s": "seconds", "ms": "milliseconds"}

func (p *parser) numberValue(o Option) (Value, *Error) {
	t := p.tok()
	want := "a number from " + itoa(o.Min) + " to " + itoa(o.Max)
	if len(o.Words) > 0 {
		want += " or " + oneOf(o.Words)
	}
	n, err := strconv.ParseInt(t.text, 10, 64)
	if t.kind != tokNumber || err != nil {
		return Value{}, p.expected(want)
	}
	p.at++
	if f, ok := units[strings.ToUpper(p.tok().text)]; ok && o.Name == "SEED_MAX_RATE" && p.tok().kind == tokWord {
		p.at++
		if n > o.Max/f {
			n = o.Max + 1
		} else {
			n *= f
		}
	}
	if next, unit := p.tok(), unitNames[o.Unit]; unit != "" && next.kind == tokWord && next.from == t.end {
		return Value{}, next.pos.errorf(StateSyntax, "%s takes a number without a unit: it is in %s, as %s = %d", o.Name, unit, o.Name, n)
	}
	if n < o.Min || n > o.Max {
		return Value{}, t.pos.errorf(StateInvalid, "%s = %d is out of range: expected %s", o.Name, n, want)
	}
	return number(n), nil
}

// routes parses NONE, DEFAULT or a list with at most one level of sets.
func (p *parser) routes() (Value, *Error) {
	v := Value{Form: Routes}
	switch {
	case p.take("NONE"):
		v.Text = "NONE"
		return v, nil
	case p.take("DEFAULT"):
		v.Text = "DEFAULT"
		return v, nil
	case !p.takeSign("("):
		return v, p.expected("a routing list such as (('B', 'C'), 'A'), NONE or DEFAULT")
	}
	for n := 0; ; {
		set, bad := p.route()
		if bad != nil {
			return v, bad
		}
		v.List = append(v.List, set)
		if n += len(set); n > maxEntries {
			return v, p.tooMany("replicas in the routing list")
		}
		if p.takeSign(",") {
			continue
		}
		return v, p.needSign(")")
	}
}

func (p *parser) route() ([]string, *Error) {
	if !p.takeSign("(") {
		server, bad := p.server()
		return []string{server}, bad
	}
	var set []string
	for {
		if p.tok().isSign("(") {
			return nil, p.tok().pos.errorf(StateSyntax, "sets in a routing list cannot be nested more than once")
		}
		server, bad := p.server()
		if bad != nil {
			return nil, bad
		}
		if set = append(set, server); len(set) > maxEntries {
			return nil, p.tooMany("replicas in a set of the routing list")
		}
		if !p.takeSign(",") {
			return set, p.needSign(")")
		}
	}
}

// replica parses a server and its options. A new replica has the options that WITH gives, and defaults for the others.
func (p *parser) replica(creating bool) (Replica, *Error) {
	r := Replica{pos: p.tok().pos}
	var bad *Error
	if r.Server, bad = p.server(); bad != nil {
		return r, bad
	}
	if !p.tok().is("WITH") || !p.ahead(1).isSign("(") || p.ahead(2).is("NOWAIT") || p.ahead(2).is("STRICT") {
		return r, nil
	}
	p.at += 2
	for {
		if bad := p.replicaOption(&r, creating); bad != nil {
			return r, bad
		}
		p.takeSign(",")
		if p.takeSign(")") {
			return r, nil
		}
	}
}

func (p *parser) replicaOption(r *Replica, creating bool) *Error {
	for place, list := range map[Place]*[]Setting{InSecondary: &r.Secondary, InPrimary: &r.Primary} {
		if !p.tok().is(string(place)) {
			continue
		}
		if len(*list) > 0 {
			return p.tok().pos.errorf(StateSyntax, "%s is given twice", place)
		}
		p.at++
		p.takeSign("=")
		var bad *Error
		*list, bad = p.optionList(place, creating)
		return bad
	}
	if _, ok := findOption(InReplica, p.tok().text); !ok {
		return p.expected("an option: " + strings.Join(append(names(InReplica, creating), "SECONDARY_ROLE", "PRIMARY_ROLE"), ", "))
	}
	s, bad := p.option(InReplica, creating)
	if bad != nil {
		return bad
	}
	for _, other := range r.Options {
		if other.Name == s.Name {
			return s.pos.errorf(StateSyntax, "%s is given twice", s.Name)
		}
	}
	r.Options = append(r.Options, s)
	return nil
}

func (p *parser) listenerName(l *Listener) *Error {
	l.pos = p.tok().pos
	t := p.tok()
	if t.kind != tokString && t.kind != tokWord && t.kind != tokName {
		return p.expected("the listener's name, as N'name'")
	}
	var bad *Error
	l.Name, bad = p.short(t, "a listener's name", maxName)
	return bad
}

// notOfDNS reports whether a character is in no name that clients can look up.
func notOfDNS(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_.", r)
}

func (p *parser) listener() (Listener, *Error) {
	var l Listener
	bad := p.listenerName(&l)
	switch {
	case bad != nil:
	case strings.ContainsFunc(l.Name, notOfDNS) || strings.ContainsAny(l.Name[:min(len(l.Name), 1)], "-."):
		bad = l.pos.errorf(StateInvalid, "a listener's name is one of DNS, with letters, digits, -, _ and ., and the first no - or ., not %s", Literal(clip(l.Name)))
	default:
		bad = p.needSign("(")
	}
	for first := true; bad == nil && !p.takeSign(")"); first = false {
		if !first {
			if bad = p.needSign(","); bad != nil {
				break
			}
		}
		switch {
		case p.take("WITH", "DHCP"):
			l.DHCP = true
			if p.take("ON") {
				var a Address
				a, bad = p.address()
				l.Addresses = []Address{a}
			}
		case p.take("WITH", "IP"):
			bad = p.addresses(&l)
		case p.take("PORT"):
			bad = p.port(&l)
		default:
			bad = p.expected("WITH IP, WITH DHCP or PORT")
		}
	}
	return l, bad
}

func (p *parser) addresses(l *Listener) *Error {
	if bad := p.needSign("("); bad != nil {
		return bad
	}
	l.Addresses = nil
	for {
		a, bad := p.address()
		if bad != nil {
			return bad
		}
		if l.Addresses = append(l.Addresses, a); len(l.Addresses) > maxEntries {
			return p.tooMany("addresses")
		}
		if !p.takeSign(",") {
			return p.needSign(")")
		}
	}
}

func (p *parser) port(l *Listener) *Error {
	if bad := p.needSign("="); bad != nil {
		return bad
	}
	t := p.tok()
	n, err := strconv.Atoi(t.text)
	if t.kind != tokNumber || err != nil || n < 1 || n > 65535 {
		return p.expected("a port from 1 to 65535")
	}
	p.at++
	l.Port = n
	return nil
}

func (p *parser) listenerChange() (m ModifyListener, bad *Error) {
	l := &m.Listener
	bad = p.listenerName(l)
	if bad == nil {
		bad = p.needSign("(")
	}
	if bad != nil {
		return m, bad
	}
	switch {
	case p.take("ADD", "IP"):
		var a Address
		a, bad = p.address()
		l.Addresses = []Address{a}
	case p.take("REMOVE", "IP"):
		m.Remove = true
		l.Addresses, bad = p.bareAddress()
	case p.take("PORT"):
		bad = p.port(l)
	default:
		bad = p.expected("ADD IP, REMOVE IP or PORT")
	}
	if bad == nil {
		bad = p.needSign(")")
	}
	return m, bad
}

// bareAddress parses ( 'ip' [, 'mask'] ), of which the mask does not matter.
func (p *parser) bareAddress() ([]Address, *Error) {
	if bad := p.needSign("("); bad != nil {
		return nil, bad
	}
	t := p.tok()
	ip, err := netip.ParseAddr(t.text)
	if t.kind != tokString || err != nil || ip.Zone() != "" || ip.Is4In6() {
		return nil, p.expected("an address, as N'10.0.0.9'")
	}
	p.at++
	if p.takeSign(",") {
		if p.tok().kind != tokString {
			return nil, p.expected("a subnet mask, as N'255.255.255.0'")
		}
		p.at++
	}
	return []Address{{IP: ip.String()}}, p.needSign(")")
}

// address parses ( 'ip4', 'mask' ) or ( 'ip6' ).
func (p *parser) address() (Address, *Error) {
	var a Address
	if bad := p.needSign("("); bad != nil {
		return a, bad
	}
	t := p.tok()
	ip, err := netip.ParseAddr(t.text)
	if t.kind != tokString || err != nil || ip.Zone() != "" || ip.Is4In6() {
		return a, p.expected("an address, as N'10.0.0.9'")
	}
	if !ip.IsGlobalUnicast() && !ip.IsLinkLocalUnicast() {
		return a, p.expected("an address that one machine at a time can have, as N'10.0.0.9'")
	}
	p.at++
	a.IP = ip.String()
	if !ip.Is4() {
		return a, p.needSign(")")
	}
	if bad := p.needSign(","); bad != nil {
		return a, bad
	}
	t = p.tok()
	mask, err := netip.ParseAddr(t.text)
	if t.kind != tokString || err != nil || !mask.Is4() || prefixLength(mask) < 1 {
		return a, p.expected("a subnet mask, as N'255.255.255.0'")
	}
	p.at++
	a.Mask = mask.String()
	return a, p.needSign(")")
}

// prefixLength returns the prefix length of an IPv4 mask; -1 if its one bits are not contiguous from the left.
func prefixLength(mask netip.Addr) int {
	n, ended := 0, false
	for _, b := range mask.As4() {
		for i := 7; i >= 0; i-- {
			one := b>>i&1 == 1
			if one && ended {
				return -1
			}
			if one {
				n++
			}
			ended = ended || !one
		}
	}
	return n
}

// expectedOption returns the error of a replica without options, whose WITH may lack its brackets.
func (p *parser) expectedOption() *Error {
	if p.tok().is("WITH") && !p.ahead(1).isSign("(") {
		p.at++
		return p.expected("'(' before the options").WithHint("WITH (OPTION = VALUE)")
	}
	return p.expected("WITH and an option")
}

// manners returns what WITH may have behind a statement.
func (s Statement) manners() string {
	if _, joins := s.Action.(Join); joins {
		return "(CLUSTER_TYPE = ...), NOWAIT or STRICT"
	}
	return "NOWAIT or STRICT"
}
