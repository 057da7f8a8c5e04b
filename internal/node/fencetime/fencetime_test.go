package fencetime

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

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
		err := Holds(tt.profile, tt.fence)
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
		b, err := json.Marshal(measurement{Took: took, Processes: Processes, At: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file(l), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Check(t.Context(), l, "default"); (err == nil) != holds {
			t.Errorf("measured %v: %v", took, err)
		}
	}
	if err := os.WriteFile(file(l), []byte("?"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Check(t.Context(), l, "default"); err == nil {
		t.Error("an unreadable measurement was taken for one")
	}
}
