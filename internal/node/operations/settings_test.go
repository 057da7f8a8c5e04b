package operations

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

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

// TestSet holds which settings are taken, and that one that is refused keeps the others from being written.
func TestSet(t *testing.T) {
	t.Parallel()
	rule, timeout, required := func(r ag.CommitRule) *ag.CommitRule { return &r }, func(d time.Duration) *time.Duration { return &d }, func(n int) *int { return &n }
	for name, tt := range map[string]struct {
		req  api.SettingsRequest
		kind fail.Kind
		text string
	}{
		"all":                {api.SettingsRequest{CommitRule: rule(ag.RuleAll), SessionTimeout: timeout(time.Minute), Required: required(2)}, "", ""},
		"the least":          {api.SettingsRequest{SessionTimeout: timeout(2 * time.Second), Required: required(0)}, "", ""},
		"the most":           {api.SettingsRequest{SessionTimeout: timeout(10 * time.Minute)}, "", ""},
		"the default again":  {api.SettingsRequest{Required: required(-1)}, "", ""},
		"nothing":            {api.SettingsRequest{}, "", ""},
		"no rule":            {api.SettingsRequest{CommitRule: rule("MOST"), Required: required(1)}, fail.Usage, "QUORUM or ALL"},
		"too short":          {api.SettingsRequest{CommitRule: rule(ag.RuleAll), SessionTimeout: timeout(time.Second)}, fail.Usage, "between 2 s and 10 min"},
		"too long":           {api.SettingsRequest{SessionTimeout: timeout(time.Hour)}, fail.Usage, "between 2 s and 10 min"},
		"more than there is": {api.SettingsRequest{CommitRule: rule(ag.RuleAll), Required: required(3)}, fail.Refused, "2 of the secondaries take part in commits; requiring 3"},
	} {
		b := newBed(t)
		b.store.x.Group.Required, b.store.x.Group.CommitRule = required(1), ag.RuleQuorum
		was := b.store.x.Group
		err := b.Set(t.Context(), tt.req)
		now := b.store.x.Group
		if tt.text != "" {
			if fail.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.text) || now.CommitRule != was.CommitRule || *now.Required != 1 || b.store.rev != 1 {
				t.Errorf("%s: %v, %+v", name, err, now)
			}
			continue
		}
		want := was
		if r := tt.req.CommitRule; r != nil {
			want.CommitRule = *r
		}
		if d := tt.req.SessionTimeout; d != nil {
			want.SessionTimeout = *d
		}
		if n := tt.req.Required; n != nil {
			want.Required = n
			if *n < 0 {
				want.Required = nil
			}
		}
		if err != nil || !reflect.DeepEqual(now, want) {
			t.Errorf("%s: %+v, want %+v, %v", name, now, want, err)
		}
	}
}

// TestProfileOfTheSameHost: a profile is held against the hosts only where it changes and the hosts are known.
func TestProfileOfTheSameHost(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.agent.statuses = map[ag.ReplicaID]agent.Status{"b": {Fence: 900 * time.Millisecond}}
	for _, tt := range []struct {
		now, next string
		blind, ok bool
	}{
		{"default", "fast", false, false},
		{"fast", "fast", false, true},
		{"fast", "default", false, true},
		{"default", "unheard of", false, true}, // the grammar refuses it
		{"default", "fast", true, true},        // the agents refuse to start
	} {
		b.agent.blind.Store(tt.blind)
		if err := b.holdsEverywhere(tt.now, tt.next); (err == nil) != tt.ok {
			t.Errorf("from %s to %s: %v", tt.now, tt.next, err)
		}
	}
}
