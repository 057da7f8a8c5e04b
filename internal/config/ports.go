package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// checkPorts refuses addresses that are none, and those that two ports cannot both bind.
func (c Config) checkPorts() (errs []error) {
	if c.Endpoint.Listen == "" {
		errs = append(errs, errors.New("endpoint.listen is missing"))
	}
	type bound struct{ key, at string }
	var all []bound
	for _, p := range []struct {
		key string
		Address
		single bool // Listen is one address
	}{{"endpoint", c.Endpoint, true}, {"read_write", c.ReadWrite, false}, {"read_only", c.ReadOnly, false}, {"http", c.HTTP, true}, {"https", c.HTTPS, true}} {
		addresses, _ := p.Places()
		if p.single {
			addresses = []string{p.Listen}
		}
		for _, at := range addresses {
			if at == "" {
				continue
			}
			if err := checkPort(at); err != nil {
				errs = append(errs, fmt.Errorf("%s.listen: %w", p.key, err))
			}
			for _, other := range all {
				if Overlap(other.at, at) {
					errs = append(errs, fmt.Errorf("%s.listen: %s is also bound by %s.listen (%s): choose another port", p.key, at, other.key, other.at))
				}
			}
			all = append(all, bound{p.key, at})
		}
	}
	return errs
}

// Overlap reports whether two addresses, host:port each, cannot both be bound: their ports are the same, and so is
// their host, or one of them is every address that the other may be. Names of hosts are not looked up.
func Overlap(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	return hostA == hostB || covers(hostA, hostB) || covers(hostB, hostA)
}

// covers reports whether every is no single address, and host is one of those that it stands for.
func covers(every, host string) bool {
	if every == "" {
		return true
	}
	all, err := netip.ParseAddr(every)
	one, oneErr := netip.ParseAddr(host)
	return err == nil && oneErr == nil && all.IsUnspecified() && all.Is4() == one.Is4()
}
