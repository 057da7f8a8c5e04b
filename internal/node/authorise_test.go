package node

import (
	"context"
	"log/slog"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/recovery"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/node/quorum"
)

// TestWhoMayOpenWhat dials every class of stream as every kind of peer, over TLS, at an endpoint that asks the node as
// an agent's does. A class that is not listed as allowed is refused.
func TestWhoMayOpenWhat(t *testing.T) {
	t.Parallel()
	ca, other := authority(t, "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11"), authority(t, "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11")
	member := func(ca *certs.CA, kind string, id ag.ReplicaID) *certs.Node {
		n, err := certs.CreateNode(t.TempDir(), ca, certs.Identity{Group: ca.Group, Kind: kind, ID: id}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	self, replica, witness := member(ca, certs.KindReplica, "n1"), member(ca, certs.KindReplica, "n2"), member(ca, certs.KindWitness, "w1")
	members := membership.New("n1", config.Layout{}, slog.New(slog.DiscardHandler))
	members.Set(ag.Group{ID: ca.Group, Replicas: []ag.Replica{
		{ID: "n1", KeyPin: self.Pin, AvailabilityMode: ag.SynchronousCommit},
		{ID: "n2", KeyPin: replica.Pin, AvailabilityMode: ag.SynchronousCommit},
		{ID: "w1", KeyPin: witness.Pin, AvailabilityMode: ag.ConfigurationOnly},
	}})
	data := []endpoint.Class{endpoint.ClassWAL, endpoint.ClassSeed, endpoint.ClassSQL, endpoint.ClassHeart}
	votes := []endpoint.Class{endpoint.ClassControl, endpoint.ClassQuorum, endpoint.ClassRelay, endpoint.ClassBack}
	all := append(append([]endpoint.Class{}, data...), votes...)
	may := func(classes ...endpoint.Class) map[endpoint.Class]bool {
		m := map[endpoint.Class]bool{}
		for _, c := range classes {
			m[c] = true
		}
		return m
	}
	for _, rule := range []struct {
		name      string
		authorize func(certs.Identity, string, endpoint.Class) error
		none      bool
	}{{"by the group", members.Authorize, false}, {"without a rule", nil, true}} {
		addr := serving(t, self, rule.authorize, all)
		for _, peer := range []struct {
			name    string
			node    *certs.Node
			allowed map[endpoint.Class]bool
		}{
			{"replica", replica, may(all...)},
			{"witness", witness, may(votes...)},
			{"a node that was removed", member(ca, certs.KindReplica, "n9"), nil},
			{"another key of a replica's name", member(ca, certs.KindReplica, "n2"), nil},
			{"a witness that calls itself a replica", member(ca, certs.KindReplica, "w1"), nil},
			{"another authority's replica", member(other, certs.KindReplica, "n2"), nil},
		} {
			for _, class := range all {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				c, err := endpoint.New(endpoint.Config{Node: peer.node}).DialBy(ctx, endpoint.KindTCP, addr, class, "n1")
				cancel()
				if err == nil {
					_ = c.Close()
				}
				if want := peer.allowed[class] && !rule.none; want != (err == nil) {
					t.Errorf("%s, %s: %s: allowed %v, answered %v", rule.name, peer.name, class, want, err)
				}
			}
		}
	}
}

func authority(t *testing.T, group ag.GroupID) *certs.CA {
	t.Helper()
	ca, err := certs.NewCA(group, "sales")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// serving runs an endpoint that serves the classes, and returns where.
func serving(t *testing.T, self *certs.Node, authorize func(certs.Identity, string, endpoint.Class) error, classes []endpoint.Class, prepare ...func(*endpoint.Endpoint)) string {
	t.Helper()
	c := endpoint.Config{Node: self, Listen: "127.0.0.1:0", Authorize: authorize, Handlers: map[endpoint.Class]endpoint.Handler{}, Logger: slog.New(slog.DiscardHandler)}
	for _, class := range classes {
		c.Handlers[class] = func(ctx context.Context, _ certs.Identity, _ net.Conn) { <-ctx.Done() }
	}
	e := endpoint.New(c)
	for _, f := range prepare {
		f(e)
	}
	if err := e.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- e.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return e.Addr().String()
}

// called returns the means to call a node that offers its methods, and which waits for ready. The caller has the name
// and the certificate of the node itself.
func called(t *testing.T, ready chan struct{}) (*endpoint.Control, ag.Replica) {
	t.Helper()
	ca := authority(t, "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11")
	self, err := certs.CreateNode(t.TempDir(), ca, certs.Identity{Group: ca.Group, Kind: certs.KindReplica, ID: "n1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		self: "n1", members: membership.New("n1", config.Layout{}, slog.New(slog.DiscardHandler)), ready: ready,
		quorum: quorum.New(quorum.Config{Layout: config.Layout{Dir: t.TempDir()}, Logger: slog.New(slog.DiscardHandler)}),
	}
	addr := serving(t, self, func(certs.Identity, string, endpoint.Class) error { return nil }, nil, func(e *endpoint.Endpoint) {
		n.control = endpoint.NewControl(e)
		n.serveControl()
	})
	c := endpoint.NewControl(endpoint.New(endpoint.Config{Node: self}))
	t.Cleanup(c.Close)
	return c, ag.Replica{ID: "n1", Endpoint: addr}
}

// A node answers before all of its parts exist. It answers pings, and says whether it founds a quorum; every other call
// of the table is offered and waits as long as its caller.
func TestMethodsWaitForTheNode(t *testing.T) {
	t.Parallel()
	control, self := called(t, make(chan struct{}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var seen marks.Seen
	if err := control.Call(ctx, self, "ping", nil, &seen); err != nil || seen != (marks.Seen{}) {
		t.Errorf("a ping: %+v, %v", seen, err)
	}
	var claim recovery.Claim
	if err := control.Call(ctx, self, "claim", nil, &claim); err != nil || claim != (recovery.Claim{}) {
		t.Errorf("a claim: %+v, %v", claim, err)
	}
	var calls sync.WaitGroup
	for _, method := range methods(t) {
		if method == "ping" || method == "claim" {
			continue
		}
		calls.Go(func() {
			brief, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
			err := control.Call(brief, self, method, nil, nil)
			if err == nil || strings.Contains(err.Error(), "by a bug") || strings.Contains(err.Error(), endpoint.CodeUnknownMethod) {
				t.Errorf("%s: %v", method, err)
			}
		})
	}
	calls.Wait()
}

// methods returns the names of all calls between nodes, as the table of package rpc has them.
func methods(t *testing.T) (names []string) {
	t.Helper()
	table, err := os.ReadFile("rpc/table.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`= Method\[.*\]\{"([a-z-]+)"`).FindAllStringSubmatch(string(table), -1) {
		names = append(names, m[1])
	}
	if len(names) < 20 {
		t.Fatalf("the table has %q", names)
	}
	return names
}
