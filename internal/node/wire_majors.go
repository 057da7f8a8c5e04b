package node

import (
	"context"
	"errors"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/node/majors"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// errMakeRoom is the cause of the end of an agent in whose place another one is to begin, after the end of its server.
var errMakeRoom = errors.New("the agent and its server make room")

// answerFirst is how long the agent goes on after that was asked for, so that the answer still leaves.
const answerFirst = 200 * time.Millisecond

// makeRoom ends the node for another agent in its place.
func makeRoom(ctx context.Context, stop context.CancelCauseFunc) {
	select {
	case <-ctx.Done():
	case <-time.After(answerFirst):
		stop(errMakeRoom)
	}
}

// newMajors returns this node's part in major upgrades, as far as it is needed before there is an agent.
func (n *node) newMajors(restart func(), background func(func(context.Context))) *majors.Service {
	return majors.New(majors.Config{
		Self: n.self, Node: n.cfg, Layout: n.layout, Logger: n.log.With("part", "major upgrade"), Members: n.members, Store: n.store,
		Update: n.quorum.UpdateGroup, Restart: restart, Background: background,
	})
}

// completeMajors gives it the parts that exist since then.
func (n *node) completeMajors() {
	n.majors.View, n.majors.Status, n.majors.Calls = n.agent.View, n.status.Status, n.control
	n.majors.Note = n.status.NoteCluster
	if n.pg != nil {
		n.majors.Server, n.majors.Archive = n.pg, n.backups
		n.majors.Switch, n.majors.Replaced = n.agent.SwitchCluster, n.clusterReplaced
	}
}

// clusterReplaced has the parts of this node use another cluster, while no server runs.
func (n *node) clusterReplaced(in programs.Install, data string) {
	n.pg.Replace(in, data)
	n.params.Replace(n.pg.Parameters())
	n.seeds.MoveTo(data)
	n.seedJobs.MoveTo(data, in.Major)
}

// serveMajors offers what the primary asks for during a major upgrade.
func (n *node) serveMajors(gate rpc.Gate) {
	rpc.Handle(gate, rpc.MajorPrograms, func(ctx context.Context, peer certs.Identity, needs api.MajorNeeds) (api.MajorPrograms, error) {
		return n.majors.Programs(ctx, peer, needs)
	})
	rpc.Handle(gate, rpc.MajorFollow, func(ctx context.Context, peer certs.Identity, needs api.MajorNeeds) (rpc.Nothing, error) {
		return n.majors.Follow(ctx, peer, needs)
	})
}
