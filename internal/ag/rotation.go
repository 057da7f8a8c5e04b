package ag

import "slices"

// RotationPhase is how far a change of the group's certificate authority has come.
type RotationPhase string

// The phases of a rotation, in this order. In each of them every member does one thing and says so; then the next one begins.
const (
	RotationTrust RotationPhase = "TRUST" // members learn to believe the new authority; nobody shows a certificate of it yet
	RotationIssue RotationPhase = "ISSUE" // members have their certificates issued by it; both are believed
	RotationDrop  RotationPhase = "DROP"  // members forget the old one
)

// Rotation is a change of the group's certificate authority under way. Its private key is not in here: replicas hand it to each other.
type Rotation struct {
	Pin         string        `json:"pin"`         // hex SHA-256 of the new authority's public key
	Certificate string        `json:"certificate"` // the new authority's, in PEM
	Phase       RotationPhase `json:"phase"`
	Done        []ReplicaID   `json:"done,omitempty"` // members that are through with the phase
	Hold        bool          `json:"hold,omitempty"` // TRUST does not end by itself: clients are to learn of the new authority, too
}

// Held reports whether the rotation waits for an administrator, whoever is through.
func (r Rotation) Held() bool { return r.Hold && r.Phase == RotationTrust }

// RotationWaits lists the members that the rotation's phase waits for, in the order of the configuration.
func (g Group) RotationWaits() (ids []ReplicaID) {
	if g.Rotation == nil {
		return nil
	}
	for _, r := range g.Replicas {
		if !slices.Contains(g.Rotation.Done, r.ID) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// RotationTurn reports whether a member may interrupt its part in the quorum for the rotation now: one at a time, in the order of the
// configuration.
func (g Group) RotationTurn(id ReplicaID) bool {
	for _, waits := range g.RotationWaits() {
		if r, _ := g.Replica(waits); r.Voter || waits == id {
			return waits == id
		}
	}
	return false
}

// RotationStep notes that a member is through with a phase of the rotation to the authority of that pin, and begins the next phase, or
// ends the rotation, once every member of the group is. It changes nothing if that phase is over; what it replaces it does not modify.
func (g *Group) RotationStep(id ReplicaID, pin string, phase RotationPhase) {
	if g.Rotation == nil || g.Rotation.Pin != pin || g.Rotation.Phase != phase {
		return
	}
	next := *g.Rotation
	if !slices.Contains(next.Done, id) {
		next.Done = append(slices.Clone(next.Done), id)
	}
	g.Rotation = &next
	if len(g.RotationWaits()) > 0 || next.Held() {
		return
	}
	next.Done = nil
	switch phase {
	case RotationTrust:
		next.Phase = RotationIssue
	case RotationIssue:
		next.Phase = RotationDrop
	case RotationDrop:
		g.Rotation = nil
	}
}
