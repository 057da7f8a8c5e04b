package ddl

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
)

func (c *change) create(name string, a Create) *Error {
	g := c.group
	if !g.Draft {
		return c.pos.messagef(41042, "the availability group %s already exists: a node is in one group", Literal(g.Name)).
			WithHint("ALTER AVAILABILITY GROUP %s changes it", Brackets(g.Name))
	}
	first := false
	var typed []ag.ReplicaID
	for _, r := range a.Replicas {
		m, ok := node(*g, r.Server)
		switch {
		case !ok:
			return r.pos.messagef(41167, "no node %s has joined", Literal(clip(r.Server))).
				WithHint("coterie member add-token here, then coterie join TOKEN --name %s there", ReplicaID(r.Server))
		case slices.Contains(typed, m.ID):
			return r.pos.messagef(35282, "replica %s is given twice", Literal(clip(r.Server)))
		}
		typed = append(typed, m.ID)
		first = first || m.ID == c.context.Primary
	}
	if !first {
		return c.pos.messagef(35237, "none of the replicas is %s, which has the data and is to be the first primary", orNobody(c.context.Primary)).
			WithHint("add REPLICA ON %s", Literal(string(c.context.Primary)))
	}
	g.Draft, g.Name = false, name
	for i := range g.Replicas {
		if m := &g.Replicas[i]; m.HasData() {
			detach(m)
		}
	}
	for _, r := range a.Replicas {
		m, _ := node(*g, r.Server)
		m.Join = ag.NotJoined
		if m.ID == c.context.Primary || !m.HasData() {
			m.Join, m.Suspended = "", false
		}
		if m.HasData() {
			m.AvailabilityMode, m.FailoverMode, m.Allow = ag.SynchronousCommit, ag.Automatic, ag.AllowReadOnly
		}
	}
	for _, r := range a.Replicas { // once all of them are replicas: routing lists name each other
		c.replica, _ = node(*g, r.Server)
		if bad := c.replicaSettings(r); bad != nil {
			return bad
		}
	}
	c.replica = nil
	if bad := c.settings(a.Options, nil); bad != nil {
		return bad
	}
	for _, db := range a.Databases {
		if bad := c.addDatabase(db); bad != nil {
			return bad
		}
	}
	if a.Listener != nil {
		return c.addListener(*a.Listener)
	}
	return nil
}

// drop removes the group. The nodes, their quorum and their data stay, and the primary's databases stay open.
func (c *change) drop() *Error {
	g := c.group
	g.Draft, g.Required, g.CommitRule, g.Options = true, nil, ag.RuleQuorum, ag.Options{}
	for i := range g.Replicas {
		r := &g.Replicas[i]
		switch {
		case !r.HasData():
			r.Options = ag.ReplicaOptions{}
		case r.ID == c.context.Primary:
			r.Options, r.Join = ag.ReplicaOptions{}, ag.Detached
			r.AvailabilityMode, r.FailoverMode = ag.SynchronousCommit, ag.Automatic
		default:
			detach(r)
			c.notice("%s keeps its copy as it is, suspended", r.ID)
		}
	}
	c.notice("%s stays open for writes, unprotected", orNobody(c.context.Primary))
	return nil
}

func (c *change) addDatabase(name string) *Error {
	if slices.Contains(c.group.Options.Databases, name) {
		return c.pos.messagef(35280, "database %s is in availability group %s already", Literal(name), Literal(c.group.Name))
	}
	switch name {
	case "template0", "template1":
		return c.pos.errorf(StateInvalid, "%s is a template", name)
	case "coterie":
		return c.pos.errorf(StateInvalid, "coterie is the name of the console")
	}
	if len(c.group.Options.Databases) >= 200 {
		return c.pos.errorf(StateInvalid, "a group registers at most 200 databases")
	}
	c.group.Options.Databases = append(c.group.Options.Databases, name)
	return nil
}

// registered refuses a database that is not registered.
func (c *change) registered(name string) *Error {
	if !slices.Contains(c.group.Options.Databases, name) {
		return c.pos.messagef(35281, "database %s is not in availability group %s", Literal(clip(name)), Literal(c.group.Name)).
			WithHint("its databases are: %s", orNone(c.group.Options.Databases))
	}
	return nil
}

func (c *change) removeDatabase(name string) *Error {
	if bad := c.registered(name); bad != nil { // it is given twice
		return bad
	}
	c.group.Options.Databases = without(c.group.Options.Databases, name)
	c.notice("no database is dropped: one with the name %s stays, and stays replicated, as the whole instance is", Brackets(name)) // it may be dropped or renamed
	return nil
}

func without(list []string, s string) []string {
	list = slices.DeleteFunc(list, func(x string) bool { return x == s })
	if len(list) == 0 {
		return nil
	}
	return list
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none registered"
	}
	return strings.Join(list, ", ")
}

func (c *change) joinDatabase(name string) *Error {
	if !slices.Contains(c.group.Options.Databases, name) {
		return c.pos.messagef(41148, "database %s is not in availability group %s", Literal(clip(name)), Literal(c.group.Name)).
			WithHint("ALTER AVAILABILITY GROUP %s ADD DATABASE %s", Brackets(c.group.Name), Brackets(name))
	}
	c.notice("database %s is on every replica already: the whole instance is replicated", name)
	return nil
}

func (c *change) leaveDatabase(name string) *Error {
	if !slices.Contains(c.group.Options.Databases, name) {
		return c.pos.messagef(35242, "database %s is not in availability group %s", Literal(clip(name)), Literal(c.group.Name))
	}
	return c.pos.errorf(StateNotSupported, "one replica cannot leave a database out: the whole instance is replicated").
		WithHint("ALTER AVAILABILITY GROUP %s REMOVE DATABASE %s takes it off the register of all", Brackets(c.group.Name), Brackets(name))
}

// suspend stops or continues data movement of one replica or, for the primary, of all others.
func (c *change) suspend(server, database string, on bool) *Error {
	verb := map[bool]string{true: "SUSPEND", false: "RESUME"}[on]
	g := c.group
	if database != "" && !slices.Contains(g.Options.Databases, database) {
		return c.pos.messagef(35239, "SET HADR %s failed: database %s is not in availability group %s", verb, Literal(clip(database)), Literal(g.Name)).
			WithHint("ALTER AVAILABILITY GROUP %s %s needs no database", Brackets(g.Name), verb)
	}
	if database != "" && len(g.Options.Databases) > 1 {
		c.notice("all databases of the replica are meant: the whole instance is replicated")
	}
	var whom []*ag.Replica
	switch {
	case server != "":
		m, ok := member(*g, server)
		if !ok {
			return c.noReplica(41167, server, c.pos)
		}
		if m.ID == c.context.Primary {
			return c.pos.errorf(StateWrongState, "%s is the primary: nothing moves to it", m.ID)
		}
		whom = append(whom, m)
	case c.context.Self == c.context.Primary:
		for i := range g.Replicas {
			if m := &g.Replicas[i]; m.ID != c.context.Primary && m.HasData() && m.Join == "" {
				whom = append(whom, m)
			}
		}
	default:
		m, ok := member(*g, string(c.context.Self))
		if !ok {
			return c.noReplica(41167, string(c.context.Self), c.pos)
		}
		whom = append(whom, m)
	}
	var stopped []ag.ReplicaID
	for _, m := range whom {
		if !m.HasData() || m.Join != "" {
			return c.pos.errorf(StateWrongState, "no data moves to %s", m.ID)
		}
		if m.Suspended == on {
			c.notice("%s is %s: nothing was changed", m.ID, map[bool]string{true: "suspended already", false: "not suspended"}[on])
			continue
		}
		m.Suspended, m.SuspendedBy = on, ""
		if on {
			m.SuspendedBy = ag.SuspendUser
			stopped = append(stopped, m.ID)
		}
	}
	return c.haveStopped(stopped)
}

// haveStopped tells whose data movement was stopped, and what commits wait for until it goes on. It refuses to leave
// too few secondaries for them.
func (c *change) haveStopped(stopped []ag.ReplicaID) *Error {
	if len(stopped) == 0 {
		return nil
	}
	c.notice("data movement of %s is suspended until RESUME: no readers there, and no part in commits", ag.Names(stopped))
	if c.takePart() == 0 {
		c.notice("no synchronous secondary is left: commits wait for none until RESUME, and no replica takes over by itself")
	}
	return c.keepsRequired()
}

func (c *change) addListener(l Listener) *Error {
	list := c.group.Options.Listeners
	switch {
	case slices.ContainsFunc(list, func(x ag.Listener) bool { return strings.EqualFold(x.Name, l.Name) }):
		return l.pos.errorf(StateDuplicate, "availability group %s has a listener %s already", Literal(c.group.Name), Literal(l.Name))
	case len(list) > 0:
		return l.pos.errorf(StateInvalid, "a group has one listener, and %s has %s", Literal(c.group.Name), Literal(list[0].Name)).
			WithHint("MODIFY LISTENER %s (ADD IP …) gives it another address", Literal(list[0].Name))
	case l.DHCP:
		return l.pos.errorf(StateNotSupported, "WITH DHCP is refused: the address must not change").WithHint("WITH IP ((N'10.0.0.9', N'255.255.255.0'))")
	}
	x := ag.Listener{Name: l.Name, Port: l.Port}
	for _, a := range l.Addresses {
		text := a.prefix()
		if slices.Contains(x.Addresses, text) {
			return l.pos.errorf(StateDuplicate, "address %s is given twice", Literal(a.IP))
		}
		x.Addresses = append(x.Addresses, text)
	}
	c.group.Options.Listeners = append(list, x)
	return nil
}

// prefix returns the address with its prefix length, which is 64 for IPv6.
func (a Address) prefix() string {
	if a.Mask == "" {
		return a.IP + "/64"
	}
	mask, err := netip.ParseAddr(a.Mask)
	if err != nil {
		return a.IP + "/32" // the parser has checked it
	}
	return fmt.Sprintf("%s/%d", a.IP, prefixLength(mask))
}

// address is the inverse of prefix.
func address(prefix string) Address {
	p, err := netip.ParsePrefix(prefix)
	if err != nil || !p.Addr().Is4() {
		ip, _, _ := strings.Cut(prefix, "/")
		return Address{IP: ip}
	}
	bits := ^uint32(0) << (32 - p.Bits())
	if p.Bits() == 0 {
		bits = 0
	}
	return Address{IP: p.Addr().String(), Mask: netip.AddrFrom4([4]byte{byte(bits >> 24), byte(bits >> 16), byte(bits >> 8), byte(bits)}).String()}
}

func (c *change) findListener(name string, pos Pos) (*ag.Listener, *Error) {
	for i := range c.group.Options.Listeners {
		if strings.EqualFold(c.group.Options.Listeners[i].Name, name) {
			return &c.group.Options.Listeners[i], nil
		}
	}
	return nil, pos.errorf(StateUndefined, "availability group %s has no listener %s", Literal(c.group.Name), Literal(clip(name)))
}

func (c *change) modifyListener(l Listener) *Error {
	x, bad := c.findListener(l.Name, l.pos)
	if bad != nil {
		return bad
	}
	if l.Port != 0 {
		x.Port = l.Port
		return nil
	}
	text := l.Addresses[0].prefix()
	if slices.Contains(x.Addresses, text) {
		return l.pos.errorf(StateDuplicate, "listener %s has address %s already", Literal(x.Name), Literal(l.Addresses[0].IP))
	}
	if len(x.Addresses) >= maxEntries {
		return l.pos.errorf(StateInvalid, "a listener has at most %d addresses", maxEntries)
	}
	x.Addresses = append(x.Addresses, text)
	return nil
}

// removeAddress removes an address of a listener. The last one stays: a listener has an address.
func (c *change) removeAddress(l Listener) *Error {
	x, bad := c.findListener(l.Name, l.pos)
	if bad != nil {
		return bad
	}
	i := slices.IndexFunc(x.Addresses, func(a string) bool { return address(a).IP == l.Addresses[0].IP })
	switch {
	case i < 0:
		return l.pos.errorf(StateUndefined, "listener %s has no address %s", Literal(x.Name), Literal(l.Addresses[0].IP)).
			WithHint("its addresses are: %s", orNone(x.Addresses))
	case len(x.Addresses) == 1:
		return l.pos.errorf(StateInvalid, "%s is the only address of listener %s", Literal(l.Addresses[0].IP), Literal(x.Name)).
			WithHint("ADD IP another one first, or REMOVE LISTENER %s", Literal(x.Name))
	}
	x.Addresses = slices.Delete(x.Addresses, i, i+1)
	return nil
}

func (c *change) removeListener(name string) *Error {
	x, bad := c.findListener(name, c.pos)
	if bad != nil {
		return bad
	}
	gone := x.Name
	c.group.Options.Listeners = slices.DeleteFunc(c.group.Options.Listeners, func(l ag.Listener) bool { return l.Name == gone })
	if len(c.group.Options.Listeners) == 0 {
		c.group.Options.Listeners = nil
	}
	return nil
}

// traceFlags sets the compression options for which the flags are aliases.
func (c *change) traceFlags(f TraceFlags) *Error {
	if f.Verb == "STATUS" {
		return nil
	}
	for _, flag := range f.Flags {
		value := map[bool]string{true: "AUTO", false: "OFF"}[(f.Verb == "ON") != (flag == 1462)]
		name := traceFlagNames[flag]
		for i := range c.group.Replicas {
			r := &c.group.Replicas[i]
			if !flagged(flag, *r) {
				continue
			}
			c.replica = r
			if bad := mustOption(InReplica, name).set(c, word(value)); bad != nil {
				return bad
			}
		}
		c.notice("trace flag %d is another name: MODIFY REPLICA ON … WITH (%s = %s)%s", flag, name, value,
			map[int]string{9592: " of synchronous replicas", 1462: " of asynchronous replicas"}[flag])
		if mustOption(InReplica, name).Verdict == NotYet {
			c.notice("%s: recorded, not yet in effect", name)
		}
	}
	return nil
}

// flagged reports whether a trace flag applies to the replica.
func flagged(flag int, r ag.Replica) bool {
	switch {
	case !r.HasData() || !r.Part():
		return false
	case flag == 9592:
		return r.AvailabilityMode == ag.SynchronousCommit
	case flag == 1462:
		return r.AvailabilityMode == ag.AsynchronousCommit
	}
	return true
}

// TraceStatus is one line of DBCC TRACESTATUS.
type TraceStatus struct {
	Flag int
	On   bool
}

// TraceStatus returns the state of the requested flags or, if none is requested, the flags that are on.
func (f TraceFlags) TraceStatus(g ag.Group) []TraceStatus {
	var out []TraceStatus
	for _, flag := range []int{1462, 9567, 9592} {
		on, any := true, false
		for _, r := range g.Replicas {
			if !flagged(flag, r) {
				continue
			}
			any = true
			v := r.Options.LogCompression
			if flag == 9567 {
				v = r.Options.SeedCompression
			}
			on = on && (v == "OFF") == (flag == 1462)
		}
		on = on && any
		if slices.Contains(f.Flags, flag) || len(f.Flags) == 0 && on {
			out = append(out, TraceStatus{flag, on})
		}
	}
	return out
}
