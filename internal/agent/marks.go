package agent

import (
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

// Marks are the durable facts of a node outside its data directory: what it promised, which copy it holds, and a promotion it
// began. Each is one small file, replaced by rename after fsync, so that a crash leaves the old one or the new one.
type Marks struct{ dir string }

// OpenMarks returns the marks kept in dir, which must exist.
func OpenMarks(dir string) *Marks { return &Marks{dir} }

// CopyMark names the copy in the data directory with the last record it saw.
type CopyMark struct {
	Copy  ag.CopyID `json:"copy"`
	Epoch ag.Epoch  `json:"epoch"`
	Seq   uint64    `json:"state_sequence"`
}

// PromotingMark says that this node began a promotion; it is removed when the epoch's LEAD is in the record.
type PromotingMark struct {
	Epoch ag.Epoch    `json:"epoch"`
	TLI   ag.Timeline `json:"tli"`
}

type promiseMark struct {
	Epoch ag.Epoch `json:"epoch"`
}

// Copy returns the copy mark; the zero value when there is none.
func (m *Marks) Copy() (CopyMark, error) { return readMark[CopyMark](m, "copy.json") }

// SetCopy stores the copy mark.
func (m *Marks) SetCopy(c CopyMark) error { return m.write("copy.json", c) }

// Promised returns the highest epoch this node promised.
func (m *Marks) Promised() (ag.Epoch, error) {
	p, err := readMark[promiseMark](m, "promise.json")
	return p.Epoch, err
}

// SetPromised stores a promise. It must be on disk before the promise is given.
func (m *Marks) SetPromised(e ag.Epoch) error { return m.write("promise.json", promiseMark{e}) }

// Promoting returns the promotion under way; the zero value when there is none.
func (m *Marks) Promoting() (PromotingMark, error) {
	return readMark[PromotingMark](m, "promoting.json")
}

// SetPromoting stores it, before PostgreSQL is asked to promote.
func (m *Marks) SetPromoting(p PromotingMark) error { return m.write("promoting.json", p) }

// ClearPromoting removes it.
func (m *Marks) ClearPromoting() error { return m.clear("promoting.json") }

// Repairing reports whether a rewind or seeding of this copy began and did not end: what is in the data directory then is no copy
// of anything, whatever its own mark says.
func (m *Marks) Repairing() bool {
	_, err := os.Lstat(filepath.Join(m.dir, "repairing.json"))
	return !errors.Is(err, fs.ErrNotExist)
}

// SetRepairing stores that, before the first byte is changed; ClearRepairing removes it once the copy has its new mark.
func (m *Marks) SetRepairing(from ag.ReplicaID) error { return m.write("repairing.json", from) }

// ClearRepairing removes it.
func (m *Marks) ClearRepairing() error { return m.clear("repairing.json") }

// StandDown is one time that this node gave up the leadership for its health or because its server ended.
type StandDown struct {
	At     time.Time `json:"at"` // by this machine's clock
	Health bool      `json:"health"`
	Epoch  ag.Epoch  `json:"epoch"`
	Why    string    `json:"why"`
}

// standDownsKept bounds how many are remembered.
const standDownsKept = 16

// StandDowns returns them, oldest first.
func (m *Marks) StandDowns() ([]StandDown, error) {
	return readMark[[]StandDown](m, "stood-down.json")
}

// SetStandDowns stores them.
func (m *Marks) SetStandDowns(s []StandDown) error { return m.write("stood-down.json", s) }

// QuarantineMark says that the copy is not trusted because its storage lost a write.
type QuarantineMark struct {
	Copy      ag.CopyID `json:"copy"`
	Why       string    `json:"why"`
	At        time.Time `json:"at"`        // by this machine's clock
	Suspended bool      `json:"suspended"` // the group's configuration says so too
	Renew     bool      `json:"renew"`     // and an operator has resumed it since: the copy is to be made anew
}

// Quarantine returns the mark; the zero value when the copy is trusted.
func (m *Marks) Quarantine() (QuarantineMark, error) {
	return readMark[QuarantineMark](m, "quarantine.json")
}

// SetQuarantine stores it.
func (m *Marks) SetQuarantine(q QuarantineMark) error { return m.write("quarantine.json", q) }

// ClearQuarantine removes it.
func (m *Marks) ClearQuarantine() error { return m.clear("quarantine.json") }

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
