package e2e

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/linkem"
)

// subnets are two Ethernets beside the lab's own network, with the nodes on them and a client that is on both.
type subnets struct{ hub, client string }

// ip runs the command in a network namespace.
func ip(t *testing.T, namespace string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ip", append([]string{"-n", namespace}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip -n %s %s: %v: %s", namespace, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// join connects the namespace to the Ethernet of that number, as 10.91.N.HOST and fd91:N::HOST.
func (s *subnets) join(t *testing.T, namespace string, number, host int) {
	t.Helper()
	port := fmt.Sprintf("p%d-%d", number, host)
	device := fmt.Sprintf("eth%d", number)
	ip(t, s.hub, "link", "add", port, "type", "veth", "peer", "name", device, "netns", namespace)
	ip(t, s.hub, "link", "set", port, "master", fmt.Sprintf("br%d", number), "up")
	ip(t, namespace, "addr", "add", fmt.Sprintf("10.91.%d.%d/24", number, host), "dev", device)
	ip(t, namespace, "addr", "add", fmt.Sprintf("fd91:%d::%d/64", number, host), "dev", device, "nodad")
	ip(t, namespace, "link", "set", device, "up")
}

// newSubnets puts n1 on the first of them, the others and the client on both.
func newSubnets(t *testing.T, g *group) *subnets {
	t.Helper()
	sum := sha256.Sum256([]byte(g.Dir()))
	s := &subnets{hub: "hub-" + hex.EncodeToString(sum[:4]), client: "cli-" + hex.EncodeToString(sum[:4])}
	for _, ns := range []string{s.hub, s.client} {
		if out, err := exec.CommandContext(t.Context(), "ip", "netns", "add", ns).CombinedOutput(); err != nil {
			t.Fatalf("ip netns add: %v: %s", err, out)
		}
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() })
		ip(t, ns, "link", "set", "lo", "up")
	}
	ip(t, s.hub, "link", "add", "br1", "type", "bridge")
	ip(t, s.hub, "link", "add", "br2", "type", "bridge")
	ip(t, s.hub, "link", "set", "br1", "up")
	ip(t, s.hub, "link", "set", "br2", "up")
	for i, r := range g.ready(t).Replicas {
		s.join(t, r.Namespace, 1, 11+i)
		if r.Name != "n1" {
			s.join(t, r.Namespace, 2, 11+i)
		}
	}
	s.join(t, s.client, 1, 200)
	s.join(t, s.client, 2, 200)
	return s
}

// dial connects from the client's network.
func (s *subnets) dial(ctx context.Context, g *group, host string, port uint16, verify *tls.Config) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(g.ReadWrite())
	if err != nil {
		return nil, err
	}
	cfg.Host, cfg.Port, cfg.TLSConfig, cfg.Fallbacks, cfg.ConnectTimeout = host, port, verify, nil, time.Second
	cfg.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	cfg.DialFunc = func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = linkem.Enter(s.client, func() error {
			var e error
			c, e = (&net.Dialer{Timeout: time.Second}).DialContext(ctx, network, addr)
			return e
		})
		return c, err
	}
	return pgx.ConnectConfig(ctx, cfg)
}

// where returns the nodes that hold the address.
func (s *subnets) where(t *testing.T, g *group, address string) (nodes []string) {
	t.Helper()
	st, err := g.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range st.Replicas {
		if strings.Contains(ip(t, r.Namespace, "-o", "addr"), " "+address+"/") {
			nodes = append(nodes, r.Name)
		}
	}
	return nodes
}

// neighbour is the client's neighbour entry of an address.
func (s *subnets) neighbour(t *testing.T, address string) string {
	t.Helper()
	f := strings.Fields(ip(t, s.client, "neigh", "show", address))
	for i, word := range f {
		if word == "lladdr" && i+1 < len(f) {
			return f[i+1]
		}
	}
	return ""
}

// serves connects until a write on the primary succeeds, and returns how long that took.
func (s *subnets) serves(t *testing.T, g *group, host string, port uint16) time.Duration {
	t.Helper()
	began := time.Now()
	for last := error(nil); ; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		conn, err := s.dial(ctx, g, host, port, nil)
		if err == nil {
			_, err = conn.Exec(ctx, "insert into seen default values")
			_ = conn.Close(context.WithoutCancel(ctx))
		}
		cancel()
		if err == nil {
			return time.Since(began)
		}
		if last = err; time.Since(began) > patience {
			t.Fatalf("nobody serves %s port %d: %v", host, port, last)
		}
	}
}

func (s *subnets) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after %v", what, patience)
		}
	}
}

// mac is the link-layer address of a node on the first Ethernet.
func mac(t *testing.T, g *group, node string) string {
	t.Helper()
	st, err := g.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range st.Replicas {
		if f := strings.Fields(ip(t, r.Namespace, "-o", "link", "show", "eth1")); r.Name == node {
			for i, word := range f {
				if word == "link/ether" {
					return f[i+1]
				}
			}
		}
	}
	return ""
}

const (
	near1, near2, near6 = "10.91.1.99", "10.91.2.99", "fd91:1::99"
	onPort              = 6000
)

// TestVirtualAddresses has the listener's addresses follow the primary through two subnets, its port and its name take
// effect while everything runs, and nothing of them stay behind.
func TestVirtualAddresses(t *testing.T) {
	long(t)
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: virtual addresses are tested in network namespaces, which only root may make")
	}
	g := raise(t, lab.Options{Net: lab.NetNamespaces})
	s := newSubnets(t, g)
	sql(t, g.ReadWrite(), "create table seen (at timestamptz default clock_timestamp())")
	name := strings.TrimSpace(groupName(t, g))
	g.says(t, "n1", fmt.Sprintf("ALTER AVAILABILITY GROUP [%s] ADD LISTENER N'shop-l' (WITH IP ((N'%s', N'255.255.255.0'), (N'%s', N'255.255.255.0'), (N'%s')), PORT = %d)", name, near1, near2, near6, onPort))
	for _, a := range []string{near1, near6} {
		t.Logf("%s serves after %v", a, s.serves(t, g, a, onPort).Round(time.Millisecond))
	}
	if where := s.where(t, g, near2); where != nil {
		t.Errorf("%s is on %v, and n1 is not in that subnet", near2, where)
	}
	s.shown(t, g)
	s.certified(t, g)
	g.bare(t, "n1")

	was := g.ready(t)
	if s.neighbour(t, near1) != mac(t, g, "n1") {
		t.Errorf("the client believes %s at %s", near1, s.neighbour(t, near1))
	}
	// The primary's node dies: no agent there removes its addresses, and the client connects by the same address.
	if err := g.Kill("n1", lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	outage := s.serves(t, g, near1, onPort)
	now := g.newPrimary(t, was)
	t.Logf("the primary's node died: %d ms without an answer at %s", outage.Milliseconds(), near1)
	if got, want := s.neighbour(t, near1), mac(t, g, *now.Primary); got != want {
		t.Errorf("the client believes %s at %s, and it is at %s", near1, got, want)
	}
	s.serves(t, g, near6, onPort)
	s.serves(t, g, near2, onPort) // the new primary is in both subnets
	s.await(t, "the dead node's kernel has let go", func() bool { w := s.where(t, g, near1); return len(w) == 1 && w[0] == *now.Primary })
	if err := g.Start("n1"); err != nil {
		t.Fatal(err)
	}
	g.ready(t)

	// A planned failover: a client that is connected by the address gets an error, and reconnects by it.
	conn, err := s.dial(t.Context(), g, near1, onPort, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	done := make(chan answer, 1)
	go func() { done <- coterie(t, "failover", "--to", "n1", "--node", g.node("n1")) }()
	for err == nil {
		_, err = conn.Exec(t.Context(), "insert into seen default values")
	}
	outage = s.serves(t, g, near1, onPort)
	if a := <-done; a.code != 0 {
		t.Fatalf("failover: %s", a.err)
	}
	var said *pgconn.PgError
	if !errors.As(err, &said) || said.Code != "57P01" && said.Code != "40001" {
		t.Errorf("in a planned failover the client heard %v", err)
	}
	t.Logf("planned failover: %d ms from the end of the session to the next answer at %s", outage.Milliseconds(), near1)
	s.await(t, "the addresses are at n1, as far as it is in their subnets", func() bool {
		w := s.where(t, g, near1)
		return len(w) == 1 && w[0] == "n1" && s.where(t, g, near2) == nil && s.neighbour(t, near1) == mac(t, g, "n1")
	})
	g.ready(t)

	g.says(t, "n2", fmt.Sprintf("ALTER AVAILABILITY GROUP [%s] MODIFY LISTENER N'shop-l' (PORT = 6001)", name))
	s.serves(t, g, near1, 6001)
	s.await(t, "the old port is closed", func() bool {
		c, err := s.dial(t.Context(), g, near1, onPort, nil)
		if err == nil {
			_ = c.Close(t.Context())
		}
		return err != nil
	})
	g.says(t, "n2", fmt.Sprintf("ALTER AVAILABILITY GROUP [%s] RESTART LISTENER N'shop-l'", name))
	s.serves(t, g, near1, 6001)
	g.says(t, "n2", fmt.Sprintf("ALTER AVAILABILITY GROUP [%s] REMOVE LISTENER N'shop-l'", name))
	s.await(t, "nobody has any of it", func() bool {
		return s.where(t, g, near1) == nil && s.where(t, g, near6) == nil
	})
	s.await(t, "the certificate has no name of it", func() bool {
		leaf, err := leafOf(t.Context(), g.DSN("n1"))
		return err == nil && leaf.VerifyHostname("shop-l") != nil
	})
	g.down(t)
}
