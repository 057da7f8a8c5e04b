package node

import (
	"context"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/node/pgserver"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/node/seedjobs"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

// openSeeding opens what copies this node's server to other members, and what fills this node's data directory. The
// agent that they ask may be made later: neither asks it before they run.
func (n *node) openSeeding() (err error) {
	log := n.log.With("part", "seeding")
	n.seeds = seedjobs.NewSource(seedjobs.SourceConfig{
		Data: n.pg.Config().PGData, Connect: n.pg.Session, AtOnce: n.cfg.SeedingsAtOnce, Logger: log,
		View:  func() *ag.View { return n.agent.View() },
		Facts: func() agent.Facts { return n.agent.Facts() },
	})
	n.seedJobs, err = seedjobs.Open(seedjobs.Config{
		Self: n.self, StateDir: n.layout.State(), Logger: n.log,
		View:     func() *ag.View { return n.agent.View() },
		Snapshot: func() *agent.Snapshot { return n.agent.Snapshot() },
		Wake:     func() { n.agent.Wake() },
		Routes:   func() *ag.Routes { return n.clients.Routes() },
		Replica:  n.members.Replica,
		Dial: func(ctx context.Context, from ag.Replica) (net.Conn, error) {
			return n.endpoint.Dial(ctx, from.Endpoint, endpoint.ClassSeed, from.ID)
		},
		Data: n.pg.Config().PGData, Major: n.pg.Config().Install.Major, Connect: n.pg.Session, ForgetRewind: n.pg.ForgetRewind, Tablespaces: n.cfg.Tablespaces,
		NodeFiles: func(id ag.CopyID) map[string][]byte {
			return map[string][]byte{pgserver.CopyFile: []byte(string(id) + "\n")}
		},
	})
	return err
}

// newSeedClient returns what takes administrators' requests for copies, also on a witness.
func (n *node) newSeedClient() *seedjobs.Client {
	return seedjobs.NewClient(seedjobs.ClientConfig{
		Self: n.self, Replica: n.members.Replica,
		Own: func() *seedjobs.Controller { return n.seedJobs },
		Seed: func(ctx context.Context, to ag.Replica, req api.SeedRequest) (seeding.Operation, error) {
			return rpc.Call(ctx, n.control, to, rpc.Seed, req)
		},
		Cancel: func(ctx context.Context, to ag.Replica) (seeding.Operation, error) {
			return rpc.Call(ctx, n.control, to, rpc.CancelSeeding, rpc.Nothing{})
		},
		List: func(ctx context.Context, to ag.Replica) ([]seeding.Operation, error) {
			return rpc.Call(ctx, n.control, to, rpc.Seedings, rpc.Nothing{})
		},
		View:     func() *ag.View { return n.agent.View() },
		Snapshot: func() *agent.Snapshot { return n.agent.Snapshot() },
		Heard:    func(id ag.ReplicaID) time.Time { return n.agent.Heard(id) },
	})
}

// serveSeed serves a copy of this node's server to another member.
func (n *node) serveSeed(ctx context.Context, peer certs.Identity, conn net.Conn) {
	if n.awaitReady(ctx) && n.seeds != nil {
		n.seeds.Serve(ctx, peer.ID, conn)
	}
}
