package config

import (
	"net"
	"os"
	"slices"
)

// CertificateHosts returns the names and addresses at which a node may be reached.
func CertificateHosts(cfg Config) []string {
	var hosts []string
	for _, a := range []Address{cfg.Endpoint, cfg.ReadWrite, cfg.ReadOnly, cfg.HTTPS} {
		listen, _ := a.Places()
		for _, hp := range append([]string{a.Advertise}, listen...) {
			if h, _, err := net.SplitHostPort(hp); err == nil && h != "" && h != "0.0.0.0" && h != "::" && !slices.Contains(hosts, h) {
				hosts = append(hosts, h)
			}
		}
	}
	if h, err := os.Hostname(); err == nil && !slices.Contains(hosts, h) {
		hosts = append(hosts, h)
	}
	return hosts
}
