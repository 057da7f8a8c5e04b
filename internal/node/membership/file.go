package membership

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/durable"
)

// Founding is the record that the first start of a new group's first node creates; it is in FoundingFile of the node
// directory.
type Founding struct {
	Group ag.Group       `json:"group"`
	Epoch ag.EpochRecord `json:"epoch"`
	State ag.State       `json:"state"`
	// Token distinguishes this quorum from an earlier one of the group; "" if no earlier one existed.
	Token string `json:"token,omitempty"`
	// Gone are the members that a recovery gave up for lost. None may answer when the quorum is founded.
	Gone []ag.Replica `json:"gone,omitempty"`
}

// ReadFounding returns the founding record of the node with this layout; the error is fs.ErrNotExist if there is none.
func ReadFounding(l config.Layout) (f Founding, err error) {
	b, err := os.ReadFile(l.FoundingFile())
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return f, fmt.Errorf("%s: %w", l.FoundingFile(), err)
	}
	return f, nil
}

// ReadGroup returns the group's configuration as the node with this layout last saw it.
func ReadGroup(l config.Layout) (g ag.Group, err error) {
	b, err := os.ReadFile(l.GroupFile())
	if err != nil {
		return g, fmt.Errorf("the group as last seen: %w; this node directory is incomplete: make it again with coterie init or coterie join", err)
	}
	if err := json.Unmarshal(b, &g); err != nil {
		return g, fmt.Errorf("%s: %w", l.GroupFile(), err)
	}
	return g, nil
}

// SaveGroup keeps the group's configuration for the next start, durably.
func SaveGroup(l config.Layout, g ag.Group) error { return durable.ReplaceJSON(l.GroupFile(), g) }
