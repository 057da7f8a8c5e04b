package check

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

func TestJudgeProfile(t *testing.T) {
	for _, tt := range []struct {
		profile string
		worst   time.Duration
		inUse   bool
		want    Level
		why     string
	}{
		{"default", 400 * time.Millisecond, true, OK, ""},
		{"default", 1300 * time.Millisecond, true, Warning, "holds all the same"},
		{"default", 2 * time.Second, true, Problem, "O/(1+rho)"},
		{"fast", 600 * time.Millisecond, false, OK, "holds all the same"},
		{"fast", 2 * time.Second, false, OK, "not to be used on this host"},
	} {
		f := judgeProfile(ag.Profiles[tt.profile], tt.worst, tt.inUse, "")
		if f.Level != tt.want || !strings.Contains(f.Why, tt.why) {
			t.Errorf("%s at %v: %+v", tt.profile, tt.worst, f)
		}
	}
}
