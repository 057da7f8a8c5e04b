package certs

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

const (
	groupA = ag.GroupID("6f1c2f3e-0c55-4a0e-9a51-6a4d3c5a7b01")
	groupB = ag.GroupID("0b7e4c62-9f0d-4f6e-8a3c-1d2e3f405162")
)

// patience is for what happens at once on an idle machine.
const patience = 60 * time.Second

func newTestCA(t *testing.T, group ag.GroupID) *CA {
	t.Helper()
	ca, err := NewCA(group, "sales")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func newTestNode(t *testing.T, ca *CA, id ag.ReplicaID) *Node {
	t.Helper()
	n, err := CreateNode(t.TempDir(), ca, Identity{ca.Group, KindReplica, id}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
