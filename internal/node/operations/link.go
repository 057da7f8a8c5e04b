package operations

import (
	"context"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/node/walstream"
)

// Link describes the path between two members. The first one is asked.
func (s *Service) Link(ctx context.Context, req api.LinkRequest) (a api.Link, err error) {
	for _, id := range []ag.ReplicaID{req.From, req.To} {
		if _, known := s.Members.Replica(id); !known {
			return a, fail.Usagef("%s is not a member of this group", id)
		}
	}
	if req.From == req.To {
		return a, fail.Usagef("name two members")
	}
	if req.From == s.Self {
		return s.Path(ctx, req.To)
	}
	ctx, cancel := context.WithTimeout(ctx, walstream.PathLimit)
	defer cancel()
	from, _ := s.Members.Replica(req.From)
	return rpc.Call(ctx, s.Calls, from, rpc.Link, req.To)
}
