package main

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/check"
)

func TestJudgeProfile(t *testing.T) {
	for _, tt := range []struct {
		profile string
		worst   time.Duration
		inUse   bool
		want    check.Level
		why     string
	}{
		{"default", 400 * time.Millisecond, true, check.OK, ""},
		{"default", 1300 * time.Millisecond, true, check.Warning, "holds all the same"},
		{"default", 2 * time.Second, true, check.Problem, "O/(1+rho)"},
		{"fast", 2 * time.Second, false, check.Warning, "not to be used on this host"},
	} {
		f := judgeProfile(ag.Profiles[tt.profile], tt.worst, tt.inUse)
		if f.Level != tt.want || !strings.Contains(f.Why, tt.why) {
			t.Errorf("%s at %v: %+v", tt.profile, tt.worst, f)
		}
	}
}
