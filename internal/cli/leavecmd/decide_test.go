package leavecmd

import (
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// group is what n2 says of the healthy group of the primary n1, the secondaries n2 and n3, and the witness w.
func group() api.Status {
	replica := func(name ag.ReplicaID, mode ag.AvailabilityMode) api.Replica {
		return api.Replica{Name: name, Role: ag.RoleSecondary, Mode: mode, Sync: ag.Synchronized, Connected: "CONNECTED", Voter: true}
	}
	st := api.Status{Group: "orders", Node: "n2", Primary: "n1", Quorum: true, Required: 1, Replicas: []api.Replica{
		replica("n1", ag.SynchronousCommit), replica("n2", ag.SynchronousCommit), replica("n3", ag.SynchronousCommit), replica("w", ag.ConfigurationOnly),
	}}
	st.Replicas[0].Role, st.Replicas[2].Voter, st.Replicas[3].Sync = ag.RolePrimary, false, ag.NotSynchronizing
	return st
}

// drop takes members out of a status.
func drop(st *api.Status, gone ...ag.ReplicaID) {
	st.Replicas = slices.DeleteFunc(st.Replicas, func(r api.Replica) bool { return slices.Contains(gone, r.Name) })
}

// TestDecide holds who may leave, and what a refusal says to run instead.
func TestDecide(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(st *api.Status)
		force  bool
		want   plan
		kind   fail.Kind
		says   string
	}{
		"a secondary":      {func(*api.Status) {}, false, plan{}, "", ""},
		"force changes it": {func(*api.Status) {}, true, plan{}, "", ""},
		"the witness":      {func(st *api.Status) { st.Node = "w" }, false, plan{}, "", ""},
		"it was removed":   {func(st *api.Status) { st.Availability.Removed, st.Replicas = true, nil }, false, plan{removed: true}, "", ""},
		"the last member":  {func(st *api.Status) { st.Node = "n1"; drop(st, "n2", "n3", "w") }, false, plan{last: true}, "", ""},
		"nothing is known": {func(st *api.Status) { st.Replicas = nil }, false, plan{}, fail.Unhealthy, "has not seen its group"},

		"the primary":         {func(st *api.Status) { st.Node = "n1" }, false, plan{}, fail.Refused, "coterie failover --to n2"},
		"the primary, forced": {func(st *api.Status) { st.Node = "n1" }, true, plan{}, fail.Refused, "coterie failover --to n2"},
		"a primary without a secondary": {func(st *api.Status) {
			st.Node = "n1"
			st.Replicas[1].Sync, st.Replicas[2].Sync = ag.Synchronizing, ag.Synchronizing
		}, false, plan{}, fail.Refused, "no secondary is synchronized"},
		"a primary and its witness":    {func(st *api.Status) { st.Node = "n1"; drop(st, "n2", "n3") }, false, plan{}, fail.Refused, "coterie member remove w"},
		"no quorum":                    {func(st *api.Status) { st.Quorum = false }, false, plan{}, fail.Unhealthy, "coterie leave --force"},
		"no quorum, forced":            {func(st *api.Status) { st.Quorum = false }, true, plan{forced: true}, "", ""},
		"no primary":                   {func(st *api.Status) { st.Primary, st.Replicas[0].Role = "", ag.RoleResolving }, false, plan{}, fail.Unhealthy, "no primary"},
		"another vote does not answer": {func(st *api.Status) { st.Replicas[3].Connected = "DISCONNECTED" }, false, plan{}, fail.Refused, "start w, or take it out for good with coterie member remove w"},
		"another vote is out of order": {func(st *api.Status) { st.Replicas[3].NoVote = "its disk is full" }, false, plan{}, fail.Refused, "1 of 2 votes"},
		"the votes are elsewhere":      {func(st *api.Status) { st.External, st.Replicas[3].Connected = 3, "DISCONNECTED" }, false, plan{}, "", ""},
		"it has no vote":               {func(st *api.Status) { st.Node, st.Replicas[3].Connected = "n3", "DISCONNECTED" }, false, plan{}, "", ""},
		"one without a vote is away": {func(st *api.Status) {
			st.Replicas[2].Connected, st.Replicas[2].Sync = "DISCONNECTED", ag.NotSynchronizing
		}, false, plan{}, fail.Refused, "only synchronized copy"},
		"the other is not synchronized":  {func(st *api.Status) { st.Replicas[2].Sync = ag.Synchronizing }, false, plan{}, fail.Refused, "wait until another secondary"},
		"it is not synchronized itself":  {func(st *api.Status) { st.Replicas[1].Sync, st.Replicas[2].Sync = ag.Synchronizing, ag.Synchronizing }, false, plan{}, "", ""},
		"the only other copy":            {func(st *api.Status) { drop(st, "n3") }, false, plan{}, fail.Refused, "coterie leave --leave-one-copy"},
		"one of two":                     {func(st *api.Status) { drop(st, "n3", "w"); st.Replicas[1].Voter = false }, false, plan{}, fail.Refused, "go on with one copy: coterie leave --leave-one-copy"},
		"one of two, with the only vote": {func(st *api.Status) { drop(st, "n3", "w"); st.Replicas[0].Voter = false }, false, plan{}, fail.Refused, "coterie leave --leave-one-copy"},
		"commits wait for one that lags": {func(st *api.Status) { st.Required = 2; lagging(st) }, false, plan{}, fail.Refused, "coterie group set required_synchronized_secondaries_to_commit=1"},
		"commits wait for fewer":         {func(st *api.Status) { st.Required = 1; lagging(st) }, false, plan{}, "", ""},
	} {
		st := group()
		tt.change(&st)
		got, err := decide(st, wish{tt.force, false, "coterie leave"})
		if got != tt.want || (err == nil) != (tt.says == "") || err != nil && (fail.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// TestLeaveOneCopy holds that an operator may let the primary go on with the only copy, and nothing else by that.
func TestLeaveOneCopy(t *testing.T) {
	t.Parallel()
	st := group()
	drop(&st, "n3", "w")
	if p, err := decide(st, wish{oneCopy: true}); p != (plan{}) || err != nil {
		t.Errorf("one of two: %+v, %v", p, err)
	}
	st = group()
	st.Replicas[2].Sync = ag.Synchronizing
	if _, err := decide(st, wish{oneCopy: true}); err == nil {
		t.Error("the only synchronized of two secondaries leaves")
	}
}

// lagging adds a secondary that is not synchronized.
func lagging(st *api.Status) {
	r := st.Replicas[2]
	r.Name, r.Sync = "n4", ag.Synchronizing
	st.Replicas = append(st.Replicas, r)
}
