package api

import (
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// MajorAct is what is asked of a node about a major upgrade of PostgreSQL.
type MajorAct string

// The requests about a major upgrade.
const (
	MajorLook   MajorAct = "look"   // whether it could be made, and how; nothing is changed
	MajorBegin  MajorAct = "begin"  // look, and make it if nothing stands in the way
	MajorFollow MajorAct = "follow" // have a replica drop its copy of the cluster that the group has left
	MajorBack   MajorAct = "back"   // go back to the cluster that this node has left
	MajorEnd    MajorAct = "end"    // have that cluster follow no more, so that the way back loses what is written since
)

// MajorRequest is a request about a major upgrade of PostgreSQL.
type MajorRequest struct {
	Act    MajorAct `json:"act"`
	To     int      `json:"to,omitempty"`
	BinDir string   `json:"bin_dir,omitempty"` // of the new programs on every replica; "": where each finds them
	Link   bool     `json:"link,omitempty"`
	// BlueGreen fills the new cluster by logical replication while the old one serves.
	BlueGreen bool          `json:"blue_green,omitempty"`
	Within    time.Duration `json:"within_ns,omitempty"` // how long automatic failover may be off for it
	Replica   ag.ReplicaID  `json:"replica,omitempty"`   // of MajorFollow
	// AllowDataLoss accepts, for MajorBack, the loss of what was written since the upgrade.
	AllowDataLoss bool `json:"allow_data_loss,omitempty"`
	// Return is for how long the old cluster follows the new one after an upgrade by blue/green; nil: a day, 0: not at
	// all.
	Return *time.Duration `json:"return_within_ns,omitempty"`
}

// MajorSide is one of the clusters of an upgrade.
type MajorSide struct {
	Major   int    `json:"major"`
	Version string `json:"version"`
	BinDir  string `json:"bin_dir"`
	Data    string `json:"data"`
}

// MajorPlan is an upgrade as it would be made, and why it would not be.
type MajorPlan struct {
	Node      ag.ReplicaID   `json:"node"`
	From      MajorSide      `json:"from"`
	To        MajorSide      `json:"to"`
	Mode      string         `json:"mode"` // copy, link or blue-green
	Size      int64          `json:"size"` // of the databases, in bytes
	Free      int64          `json:"free"` // of the file system of the new directory
	Followers []ag.ReplicaID `json:"followers"`
	Outage    time.Duration  `json:"expected_outage_ns"` // without writes; an estimate from the size
	Until     time.Time      `json:"until"`              // automatic failover is off until then at the latest
	Obstacles []string       `json:"obstacles"`
	Notes     []string       `json:"notes"`
	Steps     []string       `json:"steps"`
	Begun     bool           `json:"begun"`
}

// MajorPrograms are the programs of a major version that a replica has.
type MajorPrograms struct {
	Version string `json:"version"`
	BinDir  string `json:"bin_dir"`
	// Lacks has what the programs lack of what was asked for.
	Lacks []string `json:"lacks,omitempty"`
	// Unknown means that the installation does not tell where its extensions are.
	Unknown bool `json:"unknown,omitempty"`
	// Why the replica cannot follow; "": it can.
	Why string `json:"why,omitempty"`
}

// MajorNeeds is what a major version must have on a replica.
type MajorNeeds struct {
	To         int      `json:"to"`
	BinDir     string   `json:"bin_dir,omitempty"` // "": where the replica finds them
	Extensions []string `json:"extensions,omitempty"`
	Libraries  []string `json:"libraries,omitempty"`
	// Left is the system identifier of the cluster that the group has left, of which a replica that follows drops its
	// copy. A copy of any other cluster is not the group's to drop.
	Left string `json:"left,omitempty"`
}
