package node

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

func TestProfileThatAHostCannotHold(t *testing.T) {
	for _, tt := range []struct {
		profile string
		fence   time.Duration
		holds   bool
	}{
		{"default", 400 * time.Millisecond, true},
		{"default", 1300 * time.Millisecond, true},
		{"default", 1500 * time.Millisecond, false},
		{"fast", 700 * time.Millisecond, true},
		{"fast", 800 * time.Millisecond, false},
		{"wan", 1600 * time.Millisecond, true},
		{"wan", 2 * time.Second, false},
	} {
		err := holdsProfile(tt.profile, tt.fence)
		var failed fail.Error
		switch {
		case (err == nil) != tt.holds:
			t.Errorf("%s with F of %v: %v", tt.profile, tt.fence, err)
		case err != nil && (!errors.As(err, &failed) || failed.Kind != fail.Refused):
			t.Errorf("%s with F of %v is not refused for safety: %v", tt.profile, tt.fence, err)
		case err != nil && !strings.Contains(err.Error(), "O/(1+rho) ="):
			t.Errorf("the arithmetic is not shown: %v", err)
		}
	}
}

func TestAgentChecksTheMeasurementItKeeps(t *testing.T) {
	l, err := config.NewLayout(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(l.State(), 0o700); err != nil {
		t.Fatal(err)
	}
	for took, holds := range map[time.Duration]bool{500 * time.Millisecond: true, 2 * time.Second: false} {
		b, err := json.Marshal(measuredFence{Took: took, Processes: FencedProcesses, At: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(fenceFile(l), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := checkFence(t.Context(), l, "default"); (err == nil) != holds {
			t.Errorf("measured %v: %v", took, err)
		}
	}
	if err := os.WriteFile(fenceFile(l), []byte("?"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := checkFence(t.Context(), l, "default"); err == nil {
		t.Error("an unreadable measurement was taken for one")
	}
}

func TestAProfileThatAHostCannotHoldIsRefused(t *testing.T) {
	snap := &agent.Snapshot{
		Group:    ag.Group{Replicas: []ag.Replica{{ID: "n1"}, {ID: "n2"}, {ID: "n3"}}},
		Statuses: map[ag.ReplicaID]agent.Status{"n1": {Fence: 40 * time.Millisecond}, "n2": {Fence: 900 * time.Millisecond}},
	}
	if err := everyHostHolds(ag.Profiles["default"], snap); err != nil {
		t.Error(err)
	}
	err := everyHostHolds(ag.Profiles["fast"], snap)
	if err == nil {
		t.Fatal("n2 takes 0.9 s to fence, and fast was accepted")
	}
	for _, part := range []string{"n2", "900ms", "O/(1+rho)", "2.97s", "3.122s"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}
