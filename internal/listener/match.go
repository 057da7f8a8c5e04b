package listener

import (
	"net"
	"net/netip"
	"slices"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// login is what a rule is matched against.
type login struct {
	local       bool // by Unix socket
	tls         bool
	addr        netip.Addr // unmapped; invalid if local
	user        string
	database    string
	replication pgwire.Replication
	memberOf    []string // roles of which the user is a member, where a rule asks for that
}

// member says that the user is that role, or a member of it, directly or not.
func (l *login) member(role string) bool { return l.user == role || slices.Contains(l.memberOf, role) }

// askMembers says that matching these rules needs the memberships of the user.
func askMembers(rules []Rule) bool {
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

// matchRule returns the first rule for that login.
func matchRule(rules []Rule, l login) (Rule, bool) {
	for _, r := range rules {
		if r.matchesType(l) && r.matchesAddress(l.addr) && r.matchesDatabase(l) && r.matchesUser(l) {
			return r, true
		}
	}
	return Rule{}, false
}

func (r *Rule) matchesType(l login) bool {
	switch r.Type {
	case TypeLocal:
		return l.local
	case TypeHost, TypeHostNoGSSEnc:
		return !l.local
	case TypeHostSSL:
		return !l.local && l.tls
	case TypeHostNoSSL:
		return !l.local && !l.tls
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

// onInterface says that addr is an address of this machine, or with network in one of its networks.
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

func (r *Rule) matchesDatabase(l login) bool {
	for _, n := range r.Databases {
		switch {
		case l.replication == pgwire.ReplicationPhysical:
			if n.keyword("replication") {
				return true
			}
		case n.keyword("all"):
			return true
		case n.keyword("sameuser"):
			if l.user == l.database {
				return true
			}
		case n.keyword("samerole"), n.keyword("samegroup"):
			if l.member(l.database) {
				return true
			}
		case n.keyword("replication"):
		case n.is(l.database):
			return true
		}
	}
	return false
}

func (r *Rule) matchesUser(l login) bool {
	for _, n := range r.Users {
		if role, ok := n.role(); ok {
			if l.member(role) {
				return true
			}
		} else if n.keyword("all") || n.is(l.user) {
			return true
		}
	}
	return false
}
