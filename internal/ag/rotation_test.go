package ag

import (
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
