package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestRefusedClientsAreReported holds that a node reports why it refuses clients or does not serve the listener, at
// once when that changes, and with texts of bounded length.
func TestRefusedClientsAreReported(t *testing.T) {
	t.Parallel()
	why := []string{"nobody is admitted: " + strings.Repeat("é", reasonText)}
	for what, x := range map[string]struct {
		of   func(*Config) *func() []string
		said func(Status) [2][]string // to the others, and to the judgement
	}{
		"refused":  {func(c *Config) *func() []string { return &c.NoLogins }, func(s Status) [2][]string { return [2][]string{s.NoLogins, s.member().NoLogins} }},
		"unserved": {func(c *Config) *func() []string { return &c.Unserved }, func(s Status) [2][]string { return [2][]string{s.Unserved, s.member().Unserved} }},
	} {
		var now []string
		a := &Agent{cfg: Config{Self: "a"}}
		*x.of(&a.cfg) = func() []string { return now }
		before := a.status(ag.View{Self: "a"}, ag.Plan{})
		now = why
		after := a.status(ag.View{Self: "a"}, ag.Plan{})
		if before.Key() == after.Key() {
			t.Errorf("clients are %s, and the status counts as the one before", what)
		}
		said := x.said(after)
		if len(said[0]) != 1 || !strings.HasPrefix(said[0][0], "nobody is admitted: é") || len(said[0][0]) > reasonText || !slices.Equal(said[0], said[1]) {
			t.Errorf("%s: the judgement is told %q", what, said)
		}
	}
}

// TestCommitsWaitSinceTheyWait holds that commits are not said to have waited for as long as a member is silent that
// they have only begun to wait for.
func TestCommitsWaitSinceTheyWait(t *testing.T) {
	t.Parallel()
	var c condition
	none, one := ag.Sync{P: []ag.ReplicaID{}, N: 0}, ag.Sync{P: []ag.ReplicaID{"b"}, N: 1}
	for i, turn := range []struct {
		set              ag.Sync
		silent, at, want time.Duration
	}{
		{none, 0, 100, 0}, {one, 28, 200, 0}, {one, 30, 202, 2}, {one, 1, 203, 1}, {none, 40, 204, 0},
	} {
		if got := c.waits(turn.set, turn.silent, turn.at); got != turn.want {
			t.Errorf("turn %d: %d, want %d", i, got, turn.want)
		}
	}
	if c = (condition{}); c.waits(one, 28, 100) != 28 {
		t.Error("an agent that has just started does not know of a change")
	}
}
