package clientport

import (
	"context"
	"fmt"
	"log/slog"
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
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/listener/vip"
)

// retryPorts is how often ports are tried again that another program had.
const retryPorts = time.Minute

// binder is the listener whose addresses change. *listener.Server implements it.
type binder interface {
	SetNamed(addresses []string) map[string]error
	LeaveAddress(ctx context.Context, a netip.Addr, why string)
}

// ListenerAddresses keeps this node's part of the group's listener: a port, the virtual addresses while it is the
// primary, and the name in its certificate.
type ListenerAddresses struct {
	port   *Port
	server binder
	holder *vip.Holder // nil: the kernel's network cannot be reached, or coterie.yaml keeps this node from changing it
	served atomic.Pointer[[]catalog.Place]
	said   map[string]string // problems by address, as the log has them; run's own
	unread bool              // a certificate was issued and could not be read back; run's own
	log    *slog.Logger
}

func (p *Port) newAddresses(server binder) *ListenerAddresses {
	a := &ListenerAddresses{port: p, server: server, said: map[string]string{}, log: p.c.Logger}
	a.served.Store(&[]catalog.Place{})
	if p.c.Node.NoVirtualAddresses {
		return a
	}
	holder, err := vip.New(vip.Config{
		Listed: func() []netip.Prefix { return prefixes(p.groupListener()) }, Until: p.addressesUntil, Changed: p.Changed,
		Leaving: func(left netip.Addr) {
			server.LeaveAddress(context.Background(), left, "address "+left.String()+" leaves this node")
		},
		Logger: p.c.Logger.With("part", "addresses"),
	})
	if err != nil {
		p.c.Logger.Error("no virtual addresses on this node", "err", err)
	} else {
		a.holder = holder
	}
	return a
}

// groupListener returns the group's named listener; empty: it has none.
func (p *Port) groupListener() ag.Listener {
	if g := p.c.Group(); g != nil && len(g.Options.Listeners) > 0 {
		return g.Options.Listeners[0]
	}
	return ag.Listener{}
}

// prefixes returns the virtual addresses of a listener.
func prefixes(l ag.Listener) (out []netip.Prefix) {
	for _, text := range l.Addresses {
		if p, err := netip.ParsePrefix(text); err == nil { // the statement that added it was checked
			out = append(out, netip.PrefixFrom(p.Addr().Unmap(), p.Bits()))
		}
	}
	return out
}

// addressesUntil returns the BOOTTIME until which this node may hold the virtual addresses: the end of its lease while
// sessions go to it as the primary, else 0.
func (p *Port) addressesUntil() time.Duration {
	if r := p.routes.Load(); r == nil || r.Primary != p.c.Self {
		return 0
	}
	return p.c.Lease()
}

// run reconciles at each change until ctx is done.
func (a *ListenerAddresses) run(ctx context.Context) error {
	for {
		changed := a.port.Changed() // before the configuration
		a.reconcile()
		select {
		case <-changed:
		case <-time.After(retryPorts):
		case <-ctx.Done():
			return nil
		}
	}
}

// reconcile brings the ports and the certificate of this node to what the group's listener is.
func (a *ListenerAddresses) reconcile() {
	l := a.port.groupListener()
	a.openPorts(l)
	hosts := config.CertificateHosts(a.port.c.Node)
	if l.Name != "" {
		hosts = append(hosts, l.Name)
	}
	for _, p := range prefixes(l) {
		hosts = append(hosts, p.Addr().String())
	}
	done, unnamed, err := certs.NameListener(a.port.c.Layout.PKI(), hosts)
	if a.unread = a.unread || done; err == nil && a.unread {
		err = a.port.loadCertificate()
		a.unread = err != nil // then it is tried again: it will not be issued again
	}
	if err != nil {
		a.log.Warn("the listener's certificate does not follow its name", "err", err)
	} else if done {
		a.log.Info("listener certificate issued", "hosts", hosts, "left_out", unnamed)
	}
}

// openPorts has the listener serve exactly the addresses of l and the sockets of this node, and records which of them
// it could not open.
func (a *ListenerAddresses) openPorts(l ag.Listener) {
	own, sockets := a.port.c.Node.ReadWrite.Places()
	wanted := append(sockets, listenAt(l, own)...)
	failed := a.server.SetNamed(wanted)
	places := []catalog.Place{}
	for _, address := range wanted {
		p := catalog.Place{Address: address, State: string(vip.Online)}
		if err := failed[address]; err != nil {
			p.State, p.Problem = string(vip.Failed), err.Error()+"; end the program that has it, or choose another: read_write.listen in "+config.File+
				", MODIFY LISTENER … (PORT = …)"
		}
		if a.said[address] != p.Problem {
			if a.said[address] = p.Problem; p.Problem != "" {
				a.log.Warn("port of the listener not served here", "address", address, "problem", p.Problem)
			}
		}
		places = append(places, p)
	}
	a.served.Store(&places)
}

// listenAt returns where the listener is served beside own, this node's own addresses: on its virtual addresses if it
// has any, else on all addresses of this machine.
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

// places returns the addresses and ports of the listener as they are on this node.
func (a *ListenerAddresses) places() []catalog.Place {
	out := slices.Clone(*a.served.Load())
	if a.port.c.Node.NoVirtualAddresses {
		return append(out, a.keptOff()...)
	}
	if a.holder == nil {
		return out
	}
	for _, held := range a.holder.Addresses() {
		out = append(out, catalog.Place{Address: held.Prefix.String(), State: string(held.State), Device: held.Device, Problem: held.Problem})
	}
	return out
}

// keptOff returns the virtual addresses that coterie.yaml keeps off this node. They have failed where it is their turn.
func (a *ListenerAddresses) keptOff() (out []catalog.Place) {
	until := a.port.addressesUntil()
	for _, prefix := range prefixes(a.port.groupListener()) {
		p := catalog.Place{Address: prefix.String(), State: string(vip.Offline)}
		if until > 0 && boottime.Until(until) > 0 {
			p.State = string(vip.Failed)
			p.Problem = fmt.Sprintf("no_virtual_addresses in %s keeps this node from putting up %s: clients reach it by its own address; "+
				"take the line out and restart the agent, unless this is a lab on the loopback interface, whose nodes must not change this host's addresses", config.File, prefix.Addr())
		}
		out = append(out, p)
	}
	return out
}

// Unserved returns why the group's listener is not served on this node where it should be; nil where Server is nil.
func (p *Port) Unserved() []string { return unserved(p.Places()) }

// unserved returns the places that failed; or that no virtual address is up, if this node is the one to hold them: only
// then does an address that is down have a problem.
func unserved(places []catalog.Place) (out []string) {
	var down []string
	up := false
	for _, p := range places {
		_, err := netip.ParsePrefix(p.Address)
		why, _, _ := strings.Cut(p.Problem, "; ")
		switch {
		case p.State == string(vip.Failed):
			out = append(out, fmt.Sprintf("%s of the listener is not served here: %s", p.Address, why))
		case err == nil && p.State == string(vip.Online):
			up = true
		case err == nil && why != "":
			down = append(down, why)
		}
	}
	if !up && len(out) == 0 && len(down) > 0 {
		out = append(out, "no address of the listener is up: "+strings.Join(down, "; "))
	}
	return out
}
