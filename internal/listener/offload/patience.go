package offload

// A session is offloaded after so many answers. Each time it comes back soon, the number doubles.
const (
	AfterDefault = 8
	afterMax     = 1024
	pays         = 16 // requests of one stay that make offloading worth its cost
)

// Patience decides after how many answers a session is offloaded.
type Patience struct {
	After  int  // answers before it is offloaded for the first time
	Always bool // it waits for no more of them however soon it comes back
	Since  int  // answers since the session began or came back
	Needed int  // answers before it is offloaded
}

// Answered counts an answer. It reports whether the session is to be offloaded.
func (p *Patience) Answered() bool {
	p.Since++
	return p.Since >= p.Needed
}

// CameBack notes that the session has come back after so many requests, and why.
func (p *Patience) CameBack(why uint32, passed uint64) {
	p.Since = 0
	switch {
	case why == WhyCalled:
		p.Needed = 1
	case passed >= pays || p.Always:
		p.Needed = p.After
	default:
		p.Needed = min(2*max(p.Needed, p.After), max(afterMax, p.After))
	}
}
