package api

import (
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Program is the program of a member's agent. Versions are those that coterie --version says.
type Program struct {
	Node      ag.ReplicaID `json:"node"`
	Running   string       `json:"running,omitempty"`   // of the agent that runs; "": not known
	Installed string       `json:"installed,omitempty"` // of the program that a restart begins; "": see Problem
	Silent    bool         `json:"silent,omitempty"`    // the member does not answer
	Older     bool         `json:"older,omitempty"`     // its agent does not know the question
	Problem   string       `json:"problem,omitempty"`   // why something of it is not known; "": everything is
}

// Changed reports whether a restart of the agent would begin another version.
func (p Program) Changed() bool { return p.Installed != "" && p.Installed != p.Running }

// AgentRequest is the request for a restart of a member's agent in place.
type AgentRequest struct {
	Node ag.ReplicaID `json:"node"` // "": the one that is asked
	// Leads allows it on the primary, where transactions wait. Drain and Cut are as for a failover.
	Leads bool          `json:"leads,omitempty"`
	Drain time.Duration `json:"drain_ns,omitempty"`
	Cut   bool          `json:"cut,omitempty"`
}
