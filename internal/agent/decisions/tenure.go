package decisions

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/durable"
)

// tenureFile has the Tenure of the last epoch that this node led.
const tenureFile = "leads.json"

// Tenure is since when this node leads an epoch. It is told to people, and nothing is decided by it.
type Tenure struct {
	Epoch ag.Epoch  `json:"epoch"`
	Since time.Time `json:"since"` // by this node's clock: it took writes for the first time in the epoch
}

// tenure is the Tenure of a node as its agent knows it.
type tenure struct {
	Tenure
	written ag.Epoch // of the file
	looked  bool     // at a record that the quorum holds
	old     ag.Epoch // the epoch that had come to be led when this agent first looked: it may have been so for long
}

// open reads the file, which there may not be.
func (t *tenure) open(dir string) {
	if text, err := os.ReadFile(filepath.Join(dir, tenureFile)); err != nil || json.Unmarshal(text, &t.Tenure) != nil {
		t.Tenure = Tenure{} // since when is not known then
	}
	t.written = t.Epoch
}

// note looks at the view of a turn; open reports whether this node, as the leader, takes writes.
func (t *tenure) note(v ag.View, open bool) {
	e := v.Record.Epoch
	if !t.looked && v.Quorum {
		t.looked = true
		if e.Phase == ag.PhaseLead {
			t.old = e.Epoch
		}
	}
	leads := open && e.Phase == ag.PhaseLead && e.Leader == v.Self
	if leads && e.Epoch > t.Epoch && e.Epoch > t.old {
		t.Tenure = Tenure{e.Epoch, time.Now().Round(time.Millisecond)}
	}
}

// LeadsSince returns since when this node leads the epoch; the zero value if it does not, or that is not known.
func (d *Log) LeadsSince(e ag.Epoch) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.leads.Epoch != e {
		return time.Time{}
	}
	return d.leads.Since
}

// writeTenure writes the Tenure where it has changed.
func (d *Log) writeTenure() error {
	d.mu.Lock()
	is, written := d.leads.Tenure, d.leads.written
	d.mu.Unlock()
	if is.Epoch == written {
		return nil
	}
	if err := durable.ReplaceJSON(filepath.Join(filepath.Dir(d.path), tenureFile), is); err != nil {
		return err
	}
	d.mu.Lock()
	d.leads.written = is.Epoch
	d.mu.Unlock()
	return nil
}
