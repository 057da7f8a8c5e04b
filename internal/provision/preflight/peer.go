package preflight

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/check"
)

// Answerer opens a node's ports and answers the preflights of other hosts. It has no secrets and changes nothing.
type Answerer struct {
	Dir   string
	Ports []string
	open  []net.Listener
	udp   net.PacketConn
	srv   *http.Server
	wg    sync.WaitGroup
	turn  chan struct{} // holds a token while this host is described
}

// The results of a connection to a port.
const (
	opened   = "open"
	refusing = "refused" // the host answered, and nothing listens there
	filtered = "no answer"
)

// reach reports whether a port of another host accepts connections: opened, refusing or filtered.
func reach(ctx context.Context, host, port string) string {
	ctx, cancel := context.WithTimeout(ctx, preflightDial)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, port))
	switch {
	case err == nil:
		_ = c.Close()
		return opened
	case errors.Is(err, syscall.ECONNREFUSED):
		return refusing
	}
	return filtered
}

// Other examines another host from this one. The other host, which runs an Answerer, tries the opposite direction.
func Other(ctx context.Context, own HostFacts, host string, ports []string) ([]check.Finding, error) {
	var out []check.Finding
	find := func(level check.Level, why, run, format string, args ...any) {
		out = append(out, check.Finding{Level: level, What: fmt.Sprintf(format, args...), Why: why, Run: run})
	}
	addresses, err := (&net.Resolver{}).LookupHost(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("the name: %w", err)
	}
	find(check.OK, "", "", "is %s", strings.Join(addresses, ", "))
	answers := false
	for i, p := range ports {
		switch state := reach(ctx, host, p); state {
		case opened:
			answers = answers || i == 0
			find(check.OK, "", "", "port %s answers", p)
		case refusing:
			find(check.OK, "", "", "port %s is reached, and nothing listens there", p)
		default:
			find(check.Problem, "nodes must reach each other's, clients those of every replica", "open it in the firewall between", "port %s does not answer", p)
		}
	}
	if !answers {
		find(check.Warning, "the way back, loss, the clock and what is installed there were not looked at", "there, at the same time: coterie check --answer", "nobody answers the preflight")
		return out, nil
	}
	rtt, lost := ping(ctx, host, ports[0])
	switch {
	case lost == preflightPings:
		find(check.Warning, "streams between nodes can use TCP only", "open UDP port "+ports[0], "UDP port %s does not answer", ports[0])
	case lost > 0:
		find(check.Warning, "TRANSPORT = AUTO will choose QUIC for it", "see docs/replication-links.md", "round trip %v, %d of %d datagrams lost", rtt, lost, preflightPings)
	default:
		find(check.OK, "", "", "round trip %v, nothing lost", rtt)
	}
	start := time.Now()
	m, err := fetchMachine(ctx, host, ports)
	if err != nil {
		return append(out, check.Finding{Level: check.Failed, What: "does not say what it is: " + err.Error(), Run: "there: coterie check --answer"}), nil
	}
	middle := time.Now()
	if offset := m.Now.Sub(middle).Round(time.Millisecond); offset < -2*time.Second-middle.Sub(start) || offset > 2*time.Second {
		find(check.Warning, "nothing that is safe depends on it, but logs and certificates do", "run a time service on both", "its clock differs by %v", offset)
	}
	for _, p := range m.Back {
		find(check.Problem, "every node dials every other", "open it in the firewall of this host", "does not reach port %s of this host", p)
	}
	out = append(out, own.compare(m.software)...)
	return append(out, JudgeMachine(m, host)...), nil
}
