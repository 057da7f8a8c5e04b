package hba

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
)

// Digest returns a short text that two lists of rules share if they decide alike: the same rules in the same order,
// whatever their line numbers, comments and white space. Names from a list in a file count as if they were written out.
func Digest(rules []Rule) string {
	h := sha256.New() // writing to it never fails
	for _, r := range rules {
		_, _ = fmt.Fprintf(h, "%s\n", r.Type)
		for _, names := range [][]Name{r.Databases, r.Users} {
			for _, n := range names {
				_, _ = fmt.Fprintf(h, "%q %t\n", n.Text, n.Quoted)
			}
			_, _ = fmt.Fprintln(h)
		}
		_, _ = fmt.Fprintf(h, "%s %t %t %t %s %s\n", r.Address, r.AnyAddress, r.SameHost, r.SameNet, r.Method, r.ClientCert)
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}

// Admits reports whether a rule may admit a client of the network.
func Admits(rules []Rule) bool {
	for _, r := range rules {
		if r.Type != TypeLocal && r.Method != MethodReject {
			return true
		}
	}
	return false
}

// AdmitsFrom reports whether a rule may admit a client that comes from the address. A rule for addresses of the machine
// counts, as each node has others.
func AdmitsFrom(rules []Rule, addr netip.Addr) bool {
	for _, r := range rules {
		if r.Type == TypeLocal || !r.SameHost && !r.SameNet && !r.matchesAddress(addr.Unmap()) {
			continue
		}
		if r.Method != MethodReject {
			return true
		}
		all := func(names []Name) bool {
			return slices.ContainsFunc(names, func(n Name) bool { return n.keyword("all") })
		}
		if r.Type == TypeHost && !r.SameHost && !r.SameNet && all(r.Databases) && all(r.Users) {
			return false // of what comes from there nothing gets to a rule below
		}
	}
	return false
}
