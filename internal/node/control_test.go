package node

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/node/membership"
)

// TestSealInOwnNameOnly: a member may ask for a promise, or for readiness, in its own name only. The agent is not
// reached otherwise.
func TestSealInOwnNameOnly(t *testing.T) {
	t.Parallel()
	ca := authority(t, "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11")
	self, err := certs.CreateNode(t.TempDir(), ca, certs.Identity{Group: ca.Group, Kind: certs.KindReplica, ID: "n1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	close(ready)
	n := &node{self: "n1", members: membership.New("n1", config.Layout{}, slog.New(slog.DiscardHandler)), ready: ready}
	addr := serving(t, self, func(certs.Identity, string, endpoint.Class) error { return nil }, nil, func(e *endpoint.Endpoint) {
		n.control = endpoint.NewControl(e)
		n.serveControl()
	})
	c := endpoint.NewControl(endpoint.New(endpoint.Config{Node: self}))
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for method, req := range map[string]any{"seal": agent.SealRequest{Candidate: "n2"}, "stand-ready": agent.TakeoverRequest{From: "n2"}} {
		err := c.Call(ctx, ag.Replica{ID: "n1", Endpoint: addr}, method, req, nil)
		if err == nil || !strings.Contains(err.Error(), "n1 asks in the name of n2") {
			t.Errorf("%s: %v", method, err)
		}
	}
}
