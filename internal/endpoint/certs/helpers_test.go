package certs

import (
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

const (
	groupA = ag.GroupID("6f1c2f3e-0c55-4a0e-9a51-6a4d3c5a7b01")
	groupB = ag.GroupID("0b7e4c62-9f0d-4f6e-8a3c-1d2e3f405162")
)

func newTestCA(t *testing.T, group ag.GroupID) *CA {
	t.Helper()
	ca, err := NewCA(group, "sales")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}
