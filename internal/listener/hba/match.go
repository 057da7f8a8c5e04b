package hba

import (
	"net"
	"net/netip"
	"slices"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// Login is what rules are matched against.
type Login struct {
	Local       bool // by Unix socket
	TLS         bool
	Addr        netip.Addr // unmapped; invalid if local
	User        string
	Database    string
	Replication pgwire.Replication
	MemberOf    []string // roles of which the user is a member, itself included if it exists; if a rule depends on them
}

// member reports whether the user is that role, or a direct or indirect member of it.
func (l *Login) member(role string) bool { return slices.Contains(l.MemberOf, role) }

// NeedsMemberships reports whether matching these rules needs the memberships of the user.
func NeedsMemberships(rules []Rule) bool {
	for _, r := range rules {
		for _, n := range r.Users {
			if _, ok := n.role(); ok {
				return true
			}
		}
		for _, n := range r.Databases {
			if n.keyword("samerole") || n.keyword("samegroup") {
				return true
			}
		}
	}
	return false
}

// Match returns the first rule that matches the login.
func Match(rules []Rule, l Login) (Rule, bool) {
	for _, r := range rules {
		if r.matchesType(l) && r.matchesAddress(l.Addr) && r.matchesDatabase(l) && r.matchesUser(l) {
			return r, true
		}
	}
	return Rule{}, false
}

func (r *Rule) matchesType(l Login) bool {
	switch r.Type {
	case TypeLocal:
		return l.Local
	case TypeHost, TypeHostNoGSSEnc:
		return !l.Local
	case TypeHostSSL:
		return !l.Local && l.TLS
	case TypeHostNoSSL:
		return !l.Local && !l.TLS
	case TypeHostGSSEnc:
		return false
	}
	return false
}

func (r *Rule) matchesAddress(addr netip.Addr) bool {
	switch {
	case r.Type == TypeLocal, r.AnyAddress:
		return true
	case r.SameHost, r.SameNet:
		return onInterface(addr, r.SameNet)
	}
	return r.Address.Contains(addr)
}

// onInterface reports whether addr is an address of this machine, or, with network, in one of its networks.
func onInterface(addr netip.Addr, network bool) bool {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range list {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		if p.Addr().Unmap() == addr || network && p.Masked().Contains(addr) {
			return true
		}
	}
	return false
}

func (r *Rule) matchesDatabase(l Login) bool {
	for _, n := range r.Databases {
		switch {
		case l.Replication == pgwire.ReplicationPhysical:
			if n.keyword("replication") {
				return true
			}
		case n.keyword("all"):
			return true
		case n.keyword("sameuser"):
			if l.User == l.Database {
				return true
			}
		case n.keyword("samerole"), n.keyword("samegroup"):
			if l.member(l.Database) {
				return true
			}
		case n.keyword("replication"):
		case n.is(l.Database):
			return true
		}
	}
	return false
}

func (r *Rule) matchesUser(l Login) bool {
	for _, n := range r.Users {
		if role, ok := n.role(); ok {
			if l.member(role) {
				return true
			}
		} else if n.keyword("all") || n.is(l.User) {
			return true
		}
	}
	return false
}
