package config

import (
	"net"
	"os"
	"slices"
)

// ConsoleAddress returns host:port at which browsers reach the node's console; "" if it has none.
func (c Config) ConsoleAddress() string {
	if c.HTTPS.Listen == "" {
		return ""
	}
	if c.HTTPS.Advertise != "" {
		return c.HTTPS.Advertise
	}
	listen, _ := c.HTTPS.Places()
	host, port, err := net.SplitHostPort(append(listen, "")[0])
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() { // every address: that at which the others reach it, too
		host, _, _ = net.SplitHostPort(c.Endpoint.Advertise)
	}
	if host == "" {
		return ""
	}
	return net.JoinHostPort(host, port)
}

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
