package ag

// Intent is what a client asked for when it connected.
type Intent string

// The two intents.
const (
	ReadWrite Intent = "READ_WRITE"
	ReadOnly  Intent = "READ_ONLY"
)

// Target is a replica as the listener sees it.
type Target struct {
	ID       ReplicaID `json:"id"`
	Local    bool      `json:"local"`    // its PostgreSQL is on this node: reached by the private socket, else through the endpoint
	Healthy  bool      `json:"healthy"`  // known to accept sessions of its role
	Readable bool      `json:"readable"` // a secondary that takes read-only sessions
}

// Routes is an immutable snapshot of where sessions may go. The agent publishes a new one with each change; the data plane
// reads it from an atomic pointer and never waits for the control plane.
type Routes struct {
	Epoch     Epoch         `json:"epoch"`
	Self      ReplicaID     `json:"self"`
	Primary   ReplicaID     `json:"primary"`    // empty while there is none that accepts sessions
	WriteOpen bool          `json:"write_open"` // the primary's gate is open (S6)
	Targets   []Target      `json:"targets"`
	ReadList  [][]ReplicaID `json:"read_list"` // ordered sets; inside a set round robin; the primary only where it is listed
}

// Target returns the target of that id.
func (r *Routes) Target(id ReplicaID) (Target, bool) {
	for _, t := range r.Targets {
		if t.ID == id {
			return t, true
		}
	}
	return Target{}, false
}

// Pick chooses the target for a session of that intent. n is a counter the caller advances per session, for round robin.
// fellBack reports that a read-only session was sent to the primary for want of a readable secondary. ok is false while
// nothing can serve the intent: the caller waits, bounded.
func (r *Routes) Pick(intent Intent, n uint64) (t Target, fellBack, ok bool) {
	if r == nil {
		return Target{}, false, false
	}
	if intent == ReadWrite {
		return r.primary()
	}
	for _, set := range r.ReadList {
		var usable []Target
		for _, id := range set {
			if t, found := r.Target(id); found && t.Healthy && t.Readable && id != r.Primary {
				usable = append(usable, t)
			}
		}
		if len(usable) > 0 {
			return usable[n%uint64(len(usable))], false, true
		}
		for _, id := range set {
			if id == r.Primary && id != "" {
				t, _, ok := r.primary()
				return t, true, ok
			}
		}
	}
	return Target{}, false, false
}

func (r *Routes) primary() (Target, bool, bool) {
	t, found := r.Target(r.Primary)
	return t, false, found && t.Healthy && r.WriteOpen
}
