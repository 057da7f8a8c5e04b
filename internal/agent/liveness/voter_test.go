package liveness

import (
	"log/slog"
	"testing"
)

// An answer lease of an earlier epoch cannot be extended by a voter that has acknowledged a later one.
func TestLaterEpochEndsEarlierOnes(t *testing.T) {
	v := NewVoter(nil, nil, slog.New(slog.DiscardHandler))
	v.Resume()
	if !v.acknowledge(3) || !v.acknowledge(4) {
		t.Fatal("not acknowledged")
	}
	if v.acknowledge(3) {
		t.Error("a heartbeat of an earlier epoch was acknowledged after one of a later epoch")
	}
}
