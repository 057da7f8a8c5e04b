package node

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/listener/vip"
)

// named is what the group's listener asks of this node: a port, addresses while it is the primary, a name in its certificate.
type named struct {
	n      *node
	holder *vip.Holder                     // nil: the kernel's network cannot be reached
	ports  atomic.Pointer[[]catalog.Place] // where this node serves it, as the views show it
	said   map[string]string               // problems by address; the chore's own
}

func newNamed(n *node) *named {
	x := &named{n: n, said: map[string]string{}}
	x.ports.Store(&[]catalog.Place{})
	holder, err := vip.New(vip.Config{
		Listed: func() []netip.Prefix { return prefixes(n.listener()) }, Until: x.until, Changed: n.sessions.Changed,
		Leaving: func(a netip.Addr) {
			n.sessions.server.LeaveAddress(context.Background(), a, "address "+a.String()+" leaves this node")
		},
		Logger: n.log.With("part", "addresses"),
	})
	if err != nil {
		n.log.Error("no virtual addresses on this node", "err", err)
	} else {
		x.holder = holder
	}
	return x
}

// listener is the group's named one; empty: there is none.
func (n *node) listener() ag.Listener {
	if g := n.members.Group(); g != nil && len(g.Options.Listeners) > 0 {
		return g.Options.Listeners[0]
	}
	return ag.Listener{}
}

func prefixes(l ag.Listener) (out []netip.Prefix) {
	for _, text := range l.Addresses {
		if p, err := netip.ParsePrefix(text); err == nil { // the language has looked
			out = append(out, netip.PrefixFrom(p.Addr().Unmap(), p.Bits()))
		}
	}
	return out
}

// until is the end of the lease while sessions go to this node as the primary.
func (x *named) until() time.Duration {
	if r := x.n.sessions.routes.Load(); r == nil || r.Primary != x.n.self {
		return 0
	}
	return x.n.agent.LeaseUntil()
}

// keep brings port and certificate to what the group's listener is, at each change, until ctx is done.
func (x *named) keep(ctx context.Context) error {
	for {
		changed := x.n.sessions.Changed() // before the configuration
		x.apply()
		select {
		case <-changed:
		case <-time.After(time.Minute): // a port that another program had may be free
		case <-ctx.Done():
			return nil
		}
	}
}

func (x *named) apply() {
	l := x.n.listener()
	own, sockets := x.n.cfg.ReadWrite.Places()
	wanted := append(sockets, listenAt(l, own)...)
	failed := x.n.sessions.server.SetNamed(wanted)
	places := []catalog.Place{}
	for _, a := range wanted {
		p := catalog.Place{Address: a, State: string(vip.Online)}
		if err := failed[a]; err != nil {
			p.State, p.Problem = string(vip.Failed), err.Error()+"; end the program that has it, or choose another: read_write.listen in "+config.File+
				", MODIFY LISTENER … (PORT = …)"
		}
		if x.said[a] != p.Problem {
			if x.said[a] = p.Problem; p.Problem != "" {
				x.n.log.Warn("port of the listener not served here", "address", a, "problem", p.Problem)
			}
		}
		places = append(places, p)
	}
	x.ports.Store(&places)
	hosts := config.CertificateHosts(x.n.cfg)
	if l.Name != "" {
		hosts = append(hosts, l.Name)
	}
	for _, p := range prefixes(l) {
		hosts = append(hosts, p.Addr().String())
	}
	done, unnamed, err := certs.NameListener(x.n.layout.PKI(), hosts)
	if err == nil && done {
		err = x.n.loadListenerCertificate()
	}
	if err != nil {
		x.n.log.Warn("the listener's certificate does not follow its name", "err", err)
	} else if done {
		x.n.log.Info("listener certificate issued", "hosts", hosts, "left_out", unnamed)
	}
}

// listenAt is where the listener is served beside own, this node's own addresses: on its virtual addresses if it has any, else on all
// of this machine.
func listenAt(l ag.Listener, own []string) (out []string) {
	var ownPort string
	var everywhere bool
	var taken []string
	port := strconv.Itoa(l.Port)
	for _, a := range own {
		host, p, _ := net.SplitHostPort(a) // the configuration was checked
		if ownPort == "" {
			ownPort = p
		}
		if l.Port == 0 {
			port = ownPort
		}
		ip, err := netip.ParseAddr(host)
		everywhere = everywhere || p == port && (host == "" || err == nil && ip.IsUnspecified())
		taken = append(taken, net.JoinHostPort(host, p))
	}
	switch list := prefixes(l); {
	case everywhere, l.Port == 0 && ownPort == "":
		return nil
	case len(list) > 0:
		for _, p := range list {
			if a := net.JoinHostPort(p.Addr().String(), port); !slices.Contains(taken, a) {
				out = append(out, a)
			}
		}
	case l.Port != 0 && !slices.ContainsFunc(taken, func(a string) bool { return strings.HasSuffix(a, ":"+port) }):
		out = []string{":" + port}
	}
	return out
}

// places are the addresses and ports of the listener as they are on this node.
func (x *named) places() []catalog.Place {
	out := slices.Clone(*x.ports.Load())
	if x.holder == nil {
		return out
	}
	for _, a := range x.holder.Addresses() {
		out = append(out, catalog.Place{Address: a.Prefix.String(), State: string(a.State), Device: a.Device, Problem: a.Problem})
	}
	return out
}
