package quorum

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/agenttest"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/etcd/embedded"
)

// lone starts an embedded etcd of one member, which ends with the test.
func lone(t *testing.T) *embedded.Member {
	t.Helper()
	dir, err := os.MkdirTemp("", "q") // short: it has a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	const group = "0d9c6d8e-7e47-4b8a-8a4e-0123456789ab"
	ca, err := certs.NewCA(group, "g")
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := certs.CreateNode(dir, ca, certs.Identity{Group: group, Kind: "replica", ID: "x"}, []string{"127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	cert, key, authority := certs.TLSFiles(dir)
	const peer = "https://127.0.0.1:1" // a lone member dials nobody
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m, err := embedded.Start(ctx, embedded.Config{
		Name: "x", Dir: filepath.Join(dir, "etcd"), IdentityFile: filepath.Join(dir, "mark.json"), ClientSocket: filepath.Join(dir, "c.sock"),
		AdvertisePeer: peer, Initial: map[string]string{"x": peer}, New: true, Token: group, CertFile: cert, KeyFile: key, CAFile: authority,
		HeartbeatMS: 50, ElectionMS: 500,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := m.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestStoreKeepsTheContract holds the store of a real etcd to the contract on which the agent's tests rest. They run on
// a fake.
func TestStoreKeepsTheContract(t *testing.T) {
	if testing.Short() {
		t.Skip("starts an etcd")
	}
	m, groups := lone(t), 0
	agenttest.StoreSuite(t, func(t *testing.T) (x, y agent.Store) {
		t.Helper()
		groups++ // each test has a record of its own
		group := ag.GroupID(fmt.Sprintf("0d9c6d8e-7e47-4b8a-8a4e-%012d", groups))
		open := func(id ag.ReplicaID) (*etcd.Store, *Store) {
			c, err := etcd.OpenStore(etcd.StoreConfig{
				Group: group, Replica: id, Attempt: string(id) + "-1", Endpoints: []string{"x"}, CallTimeout: 10 * time.Second, Logger: slog.New(slog.DiscardHandler),
				Dial: func(ctx context.Context, _ string) (net.Conn, error) { return m.DialClient(ctx) },
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
			return c, &Store{etcd: c, self: id, member: func() member { return m }, voters: func() []ag.Replica { return nil }}
		}
		c, first := open("x")
		_, second := open("y")
		g := ag.Group{ID: group, Name: "g", Replicas: []ag.Replica{{ID: "x"}, {ID: "y"}}}
		err := c.Bootstrap(t.Context(), g, ag.EpochRecord{Epoch: 1, Phase: ag.PhaseLead, Leader: "x"}, ag.State{Epoch: 1})
		if err != nil {
			t.Fatal(err)
		}
		r, err := first.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := first.Renew(t.Context(), r.Record.Revs.Epoch, ag.Lead{Epoch: 1, Holder: "x"}); err != nil {
			t.Fatal(err)
		}
		return first, second
	})
}
