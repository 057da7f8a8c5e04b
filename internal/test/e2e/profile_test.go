package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lab"
)

var silentFor = regexp.MustCompile(` has been silent for ([0-9.ms]+)`)

// TestEndToEndLeaseProfile changes the lease profile by a statement while clients write, and silences the primary: the
// others wait for as long as the profile that is in force then demands. Only the end of a lease counts: with votes they
// would wait for no profile.
func TestEndToEndLeaseProfile(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	for _, step := range []struct {
		profile string
		below   time.Duration // the time of a profile that is no longer in force
	}{
		{"WAN", patience},
		{"FAST", ag.Profiles["wan"].Observer},
		{"DEFAULT", ag.Profiles["wan"].Observer},
	} {
		was := g.ready(t)
		a := coterie(t, "sql", "--node", g.node(secondaries(was)[0]), "-c", fmt.Sprintf("ALTER AVAILABILITY GROUP [%s] SET (LEASE_PROFILE = %s, FAILURE_DETECTION = STRICT)", was.Group, step.profile))
		if a.code == 4 && strings.Contains(a.err, "which is too long") && strings.Contains(a.err, "O/(1+rho) = ") {
			t.Logf("NOT RUN: %s, which a host as busy as this cannot hold and is refused: %s", step.profile, a.err)
			continue
		}
		if a.code != 0 {
			t.Fatalf("%s: exit code %d: %s", step.profile, a.code, a.err)
		}
		want := ag.Profiles[map[string]string{"WAN": "wan", "FAST": "fast", "DEFAULT": "default"}[step.profile]]
		// A lease of the profile before may be under way, which the declared silence outlasts.
		time.Sleep(ag.Profiles["wan"].Lease)
		if is := g.ready(t); is.Epoch != was.Epoch {
			t.Errorf("%s: epoch %d after %d", step.profile, is.Epoch, was.Epoch)
		}
		var now lab.Status
		g.pause(t, was, *was.Primary, lab.WhatNode, func() { now = g.newPrimary(t, was) })
		g.ready(t)
		told := must(t, "explain", "-v", "--node", g.node(*now.Primary), "--epoch", fmt.Sprint(now.Epoch)).out
		found := silentFor.FindStringSubmatch(told)
		if found == nil {
			t.Fatalf("%s: nobody claims after silence:\n%s", step.profile, told)
		}
		silence, err := time.ParseDuration(found[1])
		if err != nil {
			t.Fatal(err)
		}
		if t.Logf("%s: claimed after %v of silence", step.profile, silence); silence < want.Observer || silence >= step.below {
			t.Errorf("%s: claimed after %v of silence; want %v", step.profile, silence, want.Observer)
		}
		g.judgeAndGoOn(t)
	}
	g.down(t)
}
