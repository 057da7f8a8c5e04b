package ag

import "errors"

// Reasons for which a leader cannot tell that a commit may be acknowledged, however long it waits.
var (
	ErrNotLeading = errors.New("this node does not lead a server that takes writes")
	ErrNotCovered = errors.New("the synchronous setting does not keep the record true")
)

// Acknowledged reports whether a commit that ends at or before lsn may be acknowledged by what these streams of the current epoch
// have flushed: as many members of the setting in force as it asks for, counted as PostgreSQL counts them, except that a copy
// other than the one the record names does not count. That is what PostgreSQL's own wait establishes, so whatever follows from it
// (the three moves of quorum.go) follows from this.
//
// Take lsn first and the latest view after it: whatever setting is proven in a view that comes later, its barrier is sampled
// later still and lies at or behind lsn.
func (v View) Acknowledged(lsn LSN, streams []Stream) (bool, error) {
	e, st, set := v.Record.Epoch, v.Record.State, v.Local.Sync
	switch {
	case e.Leader != v.Self || e.Phase != PhaseLead || st.Epoch != e.Epoch || v.Local.Server != ServerWritable:
		return false, ErrNotLeading
	case !st.Holds(set):
		return false, ErrNotCovered
	}
	n := 0
	for _, id := range set.P {
		for _, s := range streams {
			m, in := st.InV(id)
			if s.Member == id && s.Open && s.Flush >= lsn && (!in || m.Copy == s.Copy) {
				n++
				break
			}
		}
	}
	return n >= set.N, nil
}
