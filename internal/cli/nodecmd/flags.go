package nodecmd

import (
	"net"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// NodeFlags are the common flags of init, join and witness.
type NodeFlags struct {
	name, address, Endpoint, ReadWrite, ReadOnly, HTTP, HTTPS, binDir string
	superuser                                                         string
	noStart                                                           bool
	major                                                             int
	quorum                                                            quorumFlags
}

// sanitizeName makes a valid node name from a host name.
func sanitizeName(host string) string {
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, host)
	name = strings.TrimLeft(name, "_0123456789")
	if name == "" {
		name = "n1"
	}
	return name[:min(len(name), 30)]
}

// PortNumbers returns the numbers of the node's ports that are not empty, at most four. The port between nodes is the
// first.
func (f *NodeFlags) PortNumbers() ([]string, error) {
	var out []string
	for _, a := range []string{f.Endpoint, f.ReadWrite, f.ReadOnly, f.HTTP} {
		if a == "" {
			continue
		}
		_, p, err := net.SplitHostPort(a)
		if err != nil {
			return nil, fail.Usagef("%q: %w", a, err)
		}
		out = append(out, p)
	}
	return out, nil
}
