package marks

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/durable"
)

// Marks are the durable facts of a node outside its data directory. Each is one small file that is replaced by rename
// AFTER fsync, so that a crash leaves either the old or the new one.
type Marks struct {
	dir    string
	beside string // "": none
}

// Open returns the marks kept in dir, which must exist.
func Open(dir string) *Marks { return &Marks{dir: dir} }

// Beside keeps the mark of a quarantine in another directory as well, which is on no disk that may fail: it outlives
// the agent, and not the machine. It returns m.
func (m *Marks) Beside(dir string) *Marks {
	m.beside = dir
	return m
}

// Dir returns the directory of the marks.
func (m *Marks) Dir() string { return m.dir }

// Copy names the copy in the data directory, with the last record that it saw.
type Copy struct {
	Copy  ag.CopyID `json:"copy"`
	Epoch ag.Epoch  `json:"epoch"`
	Seq   uint64    `json:"state_sequence"`
	// Next is the identity that a present copy is about to get, in the data directory first. "": it keeps its own.
	Next ag.CopyID `json:"next,omitempty"`
}

// Is returns which copy a data directory holds that names inside, and whether it is one that the mark knows.
func (c Copy) Is(inside ag.CopyID) (id ag.CopyID, known bool) {
	if c.Next != "" && inside == c.Next {
		return c.Next, true
	}
	return c.Copy, inside == c.Copy
}

// Promotion records that this node began a promotion. It is removed AFTER the epoch's LEAD is in the record.
type Promotion struct {
	Epoch ag.Epoch    `json:"epoch"`
	TLI   ag.Timeline `json:"tli"`
	// From is where the log ended before this promotion, and before those that did not come to lead either, of which
	// First is the first timeline. Nothing behind From was acknowledged.
	From  ag.Position `json:"from,omitzero"`
	First ag.Timeline `json:"first,omitempty"` // 0: TLI
}

// Next returns the mark of a promotion that begins where the log ends at a position, in place of p.
func (p Promotion) Next(e ag.Epoch, tli ag.Timeline, at ag.Position) Promotion {
	if from := p.Unled(at); from.Timeline != 0 {
		return Promotion{e, tli, from, cmp.Or(p.First, p.TLI)}
	}
	return Promotion{e, tli, at, tli}
}

// Unled returns up to where a log counts that ends at a position; the zero value if all of it counts, as far as the
// mark tells. A promotion that was marked, and had not begun when its node died, leaves the log on the timeline of an
// earlier one.
func (p Promotion) Unled(at ag.Position) ag.Position {
	if at.Timeline < cmp.Or(p.First, p.TLI) || at.Timeline > p.TLI {
		return ag.Position{}
	}
	return p.From
}

// UnledIn is Unled of a log whose history is known, which tells where the log left the timeline before the promotion.
// From may be lower, by what the server had received and not replayed when the promotion began.
func (p Promotion) UnledIn(history []ag.TimelineEntry, at ag.Position) ag.Position {
	from := p.Unled(at)
	for _, t := range history {
		if from.Timeline != 0 && t.TLI == cmp.Or(p.First, p.TLI) {
			return ag.Position{Timeline: t.Parent, LSN: t.Switch}
		}
	}
	return from
}

// Promise is the highest epoch that this node promised, and the candidate to which it gave its seal of it, or the
// leader that it followed first. No other one gets that seal: in a store that keeps its promises none asks, for one
// candidate alone claims an epoch.
type Promise struct {
	Epoch ag.Epoch     `json:"epoch"`
	To    ag.ReplicaID `json:"candidate,omitempty"` // "": it gave none
}

// Copy returns the copy mark; the zero value if there is none.
func (m *Marks) Copy() (Copy, error) { return readMark[Copy](m, "copy.json") }

// SetCopy stores the copy mark.
func (m *Marks) SetCopy(c Copy) error { return m.write("copy.json", c) }

// Promise returns the promise of this node; the zero value if it gave none.
func (m *Marks) Promise() (Promise, error) { return readMark[Promise](m, "promise.json") }

// Promised returns the highest epoch that this node promised.
func (m *Marks) Promised() (ag.Epoch, error) {
	p, err := m.Promise()
	return p.Epoch, err
}

// SetPromise stores a promise. It MUST be on disk BEFORE the promise is given.
func (m *Marks) SetPromise(p Promise) error { return m.write("promise.json", p) }

// SetPromised is SetPromise of an epoch whose seal was given to nobody.
func (m *Marks) SetPromised(e ag.Epoch) error { return m.SetPromise(Promise{Epoch: e}) }

// Promoting returns the promotion under way; the zero value if there is none.
func (m *Marks) Promoting() (Promotion, error) {
	return readMark[Promotion](m, "promoting.json")
}

// SetPromoting stores a promotion. It MUST be on disk BEFORE PostgreSQL is promoted.
func (m *Marks) SetPromoting(p Promotion) error { return m.write("promoting.json", p) }

// ClearPromoting removes the promotion.
func (m *Marks) ClearPromoting() error { return m.clear("promoting.json") }

// Repairing reports whether a rewind or seeding of this copy began and did not end. The data directory then holds no
// valid copy, even if its own mark names one.
func (m *Marks) Repairing() bool {
	_, err := os.Lstat(filepath.Join(m.dir, "repairing.json"))
	return !errors.Is(err, fs.ErrNotExist)
}

// SetRepairing stores that a repair begins. It MUST be on disk BEFORE the first byte is changed.
func (m *Marks) SetRepairing(from ag.ReplicaID) error { return m.write("repairing.json", from) }

// ClearRepairing removes it, AFTER the copy has its new mark.
func (m *Marks) ClearRepairing() error { return m.clear("repairing.json") }

// StandDown is one case in which this node gave up the leadership for its health or because its server ended.
type StandDown struct {
	At     time.Time `json:"at"` // by this machine's clock
	Health bool      `json:"health"`
	Epoch  ag.Epoch  `json:"epoch"`
	Why    string    `json:"why"`
}

// StandDownsKept is the number of stand-downs that a node remembers.
const StandDownsKept = 16

// StandDowns returns the stored stand-downs, oldest first.
func (m *Marks) StandDowns() ([]StandDown, error) {
	return readMark[[]StandDown](m, "stood-down.json")
}

// SetStandDowns stores the stand-downs.
func (m *Marks) SetStandDowns(s []StandDown) error { return m.write("stood-down.json", s) }

// Quarantine records that the copy is not trusted because its storage lost a write.
type Quarantine struct {
	Copy      ag.CopyID `json:"copy"`
	Why       string    `json:"why"`
	At        time.Time `json:"at"`        // by this machine's clock
	Suspended bool      `json:"suspended"` // the group's configuration has this node suspended for it
	Renew     bool      `json:"renew"`     // an operator has resumed it since: the copy must be made anew
}

const quarantineFile = "quarantine.json"

// Quarantine returns the mark; the zero value if the copy is trusted. One that is kept beside counts for the copy that
// it names only: another one may have come in its place, on another disk.
func (m *Marks) Quarantine() (Quarantine, error) {
	q, err := readMark[Quarantine](m, quarantineFile)
	if m.beside == "" || q.Why != "" {
		return q, err
	}
	second, err2 := readMark[Quarantine](Open(m.beside), quarantineFile)
	held, err3 := m.Copy()
	if ours := second.Copy != "" && (second.Copy == held.Copy || second.Copy == held.Next); ours && second.Why != "" {
		return second, nil
	}
	return q, errors.Join(err, err2, err3)
}

// SetQuarantine stores the mark. If the disk does not take it, it is kept beside, and the error says why.
func (m *Marks) SetQuarantine(q Quarantine) error {
	var err2 error
	if m.beside != "" {
		err2 = Open(m.beside).write(quarantineFile, q)
	}
	return errors.Join(m.write(quarantineFile, q), err2)
}

// ClearQuarantine removes the mark.
func (m *Marks) ClearQuarantine() error {
	var err2 error
	if m.beside != "" {
		err2 = Open(m.beside).clear(quarantineFile)
	}
	return errors.Join(m.clear(quarantineFile), err2)
}

func (m *Marks) clear(name string) error {
	if err := durable.Remove(filepath.Join(m.dir, name)); err != nil {
		return fmt.Errorf("clear mark %s: %w", name, err)
	}
	return nil
}

func readMark[T any](m *Marks, name string) (T, error) {
	var v T
	b, err := os.ReadFile(filepath.Join(m.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		return v, fmt.Errorf("read mark %s: %w", name, err)
	}
	return v, nil
}

func (m *Marks) write(name string, v any) error {
	if err := durable.ReplaceJSON(filepath.Join(m.dir, name), v); err != nil {
		return fmt.Errorf("write mark %s: %w", name, err)
	}
	return nil
}

// Seen is the latest record that this node has seen, and the store that held it. In a store that keeps its promises the
// numbers only grow and the identity stays the same. The revision on disk is that of the last time another field
// changed.
type Seen struct {
	Epoch  ag.Epoch     `json:"epoch"`
	Seq    uint64       `json:"state_sequence"`
	Store  uint64       `json:"store,omitempty"`
	Rev    int64        `json:"store_revision,omitempty"`
	Leader ag.ReplicaID `json:"leader,omitempty"` // the replica that leads the epoch; "": none does yet
	// Chosen is the replica that is promoted in the epoch, or leads it; "": none was chosen yet, or this node. Led is
	// the latest epoch that came to be led, and By its leader. In a store that keeps its promises an epoch has one.
	Chosen ag.ReplicaID `json:"chosen,omitempty"`
	Led    ag.Epoch     `json:"led,omitempty"`
	By     ag.ReplicaID `json:"led_by,omitempty"`
}

// Seen returns the latest record seen; the zero value if there was none.
func (m *Marks) Seen() (Seen, error) { return readMark[Seen](m, "seen.json") }

// SetSeen stores the latest record seen.
func (m *Marks) SetSeen(s Seen) error { return m.write("seen.json", s) }

// OlderThan reports whether a store whose record is s cannot have held the record of o before.
func (s Seen) OlderThan(o Seen) bool { return s.Epoch < o.Epoch || s.Seq < o.Seq }
