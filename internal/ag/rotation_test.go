package ag

import (
	"reflect"
	"slices"
	"testing"
)

func rotating(ids ...ReplicaID) *Group {
	g := &Group{Rotation: &Rotation{Pin: "new", Phase: RotationTrust}}
	for _, id := range ids {
		g.Replicas = append(g.Replicas, Replica{ID: id, Voter: id != "c"})
	}
	return g
}

// Each phase waits for every member, and only for members; a report that is repeated, late or of another rotation
// changes nothing.
func TestRotationPhases(t *testing.T) {
	g := rotating("a", "b", "c")
	for _, phase := range []RotationPhase{RotationTrust, RotationIssue, RotationDrop} {
		for _, id := range []ReplicaID{"b", "c", "b", "x"} {
			g.RotationStep(id, "new", phase)
			g.RotationStep("a", "other", phase)
		}
		if g.Rotation.Phase != phase || !slices.Equal(g.RotationWaits(), []ReplicaID{"a"}) {
			t.Fatalf("%s: %+v waits for %v", phase, g.Rotation, g.RotationWaits())
		}
		g.RotationStep("a", "new", phase)
		g.RotationStep("a", "new", phase)
	}
	if g.Rotation != nil || g.RotationWaits() != nil {
		t.Errorf("after its last phase: %+v", g.Rotation)
	}
}

// A member that leaves is not waited for: the other members report again that they have finished.
func TestRotationWithoutMemberThatLeft(t *testing.T) {
	g := rotating("a", "b")
	g.RotationStep("a", "new", RotationTrust)
	was := g.Rotation
	g.Replicas = g.Replicas[:1]
	g.RotationStep("a", "new", RotationTrust)
	if g.Rotation.Phase != RotationIssue {
		t.Errorf("%+v", g.Rotation)
	}
	if was.Phase != RotationTrust || len(was.Done) != 1 {
		t.Errorf("what others may hold was modified: %+v", was)
	}
}

// A rotation that is held stays in TRUST until it is released, and then continues.
func TestRotationHeld(t *testing.T) {
	g := rotating("a")
	g.Rotation.Hold = true
	g.RotationStep("a", "new", RotationTrust)
	if g.Rotation.Phase != RotationTrust || len(g.RotationWaits()) != 0 {
		t.Errorf("held: %+v", g.Rotation)
	}
	g.Rotation.Hold = false
	g.RotationStep("a", "new", RotationTrust)
	if g.Rotation.Phase != RotationIssue {
		t.Errorf("let go: %+v", g.Rotation)
	}
}

// Voters take their turn one after the other. A member that does not vote waits only for the members before it.
func TestRotationTurns(t *testing.T) {
	g := rotating("a", "c", "b")
	for _, want := range [][]ReplicaID{{"a"}, {"c", "b"}, {"b"}} {
		for _, id := range []ReplicaID{"a", "b"} {
			if got := g.RotationTurn(id); got != slices.Contains(want, id) {
				t.Errorf("%v through: turn of %s is %t", g.Rotation.Done, id, got)
			}
		}
		g.RotationStep(want[0], "new", RotationTrust)
	}
	if g = rotating("a"); !g.RotationTurn("a") {
		t.Error("one alone waits")
	}
	if g.Rotation = nil; g.RotationTurn("a") {
		t.Error("a turn without a rotation")
	}
}

// TestMemberStep: a member changes its own entry, and only what the step says.
func TestMemberStep(t *testing.T) {
	group := func() Group {
		return Group{Rotation: &Rotation{Pin: "p", Phase: RotationIssue}, Replicas: []Replica{
			{ID: "n1", Voter: true, EtcdID: 1, AvailabilityMode: SynchronousCommit},
			{ID: "n2", AvailabilityMode: SynchronousCommit},
			{ID: "w", Voter: true, AvailabilityMode: ConfigurationOnly},
		}}
	}
	for _, tt := range []struct {
		name  string
		step  MemberStep
		id    ReplicaID
		alter func(*Group) // the group before
		want  func(*Group) // what changes; nil: it is refused
	}{
		{"it votes", MemberStep{EtcdID: 3}, "w", nil, func(g *Group) { g.Replicas[2].EtcdID = 3 }},
		{"another's member", MemberStep{EtcdID: 1}, "w", nil, nil},
		{"a stranger", MemberStep{EtcdID: 3}, "x", nil, nil},
		{"no place for a vote", MemberStep{EtcdID: 3}, "n2", nil, nil},
		{"an external quorum", MemberStep{EtcdID: 3}, "w", func(g *Group) { g.External = 3 }, nil},
		{"it came back", MemberStep{CameBack: true}, "w", nil, func(g *Group) { g.AssignVotes() }},
		{"its part of a rotation", MemberStep{Pin: "p", Phase: RotationIssue}, "w", nil, func(g *Group) { g.RotationStep("w", "p", RotationIssue) }},
		{"a rotation that is over", MemberStep{Pin: "q", Phase: RotationIssue}, "w", nil, func(*Group) {}},
		{"nothing", MemberStep{}, "w", nil, func(*Group) {}},
	} {
		got, want := group(), group()
		if tt.alter != nil {
			tt.alter(&got)
			tt.alter(&want)
		}
		err := tt.step.Apply(&got, tt.id)
		if tt.want != nil {
			tt.want(&want)
		}
		if (err == nil) != (tt.want != nil) || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v: %+v", tt.name, err, got)
		}
	}
}
