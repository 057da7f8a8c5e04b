package replication

import (
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// pastFor is how long the process of a stream that has ended counts as this Downstream's. It may take that long to
// notice.
const pastFor = 2 * time.Minute

// notePast remembers the process of a stream that has ended. The caller holds mu.
func (d *Downstream) notePast(st *stream) {
	now := boottime.Now()
	for pid, at := range d.past {
		if now-at > pastFor {
			delete(d.past, pid)
		}
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.pid != 0 {
		d.past[st.pid] = now
	}
}

// Owns reports whether the server's process with that pid serves a WAL stream of this Downstream, or did within the
// last two minutes. A walsender in any state but startup whose process it does not own was opened by another program:
// a walreceiver asks for WAL only after this Downstream has seen which process serves it.
func (d *Downstream) Owns(pid int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.past[pid]; ok {
		return true
	}
	for st := range d.streams {
		st.mu.Lock()
		is := st.pid == pid
		st.mu.Unlock()
		if is {
			return true
		}
	}
	return false
}
