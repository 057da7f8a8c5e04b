package storage

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Kind is the layer that keeps the copies.
type Kind string

// The kinds. Plain is a block device below which no mirror was found; Other is a file system of which this package
// knows nothing, as one of the network.
const (
	Btrfs Kind = "btrfs"
	MD    Kind = "md"
	LVM   Kind = "lvm"
	ZFS   Kind = "zfs"
	Plain Kind = "plain"
	Other Kind = "other"
)

// State is how a volume is, in one word.
type State string

// The states, from the best to the worst. Degraded: a side is missing, or lacks writes. The state of a volume without a
// mirror is None or Errors.
const (
	None     State = "none"     // there is no second copy, so none can be missing
	Whole    State = "whole"    // every side has everything, as far as the layer knows
	Resync   State = "resync"   // a side is being filled, and every block has its copies beside that
	Errors   State = "errors"   // a device returned errors, and the other side had the data
	Degraded State = "degraded" // some blocks have fewer copies than they should
	Unknown  State = "unknown"  // the layer could not be asked; Why says the reason
)

// Device is one side of a mirror, or a device below a volume.
type Device struct {
	Name  string `json:"name"`
	State string `json:"state"` // "ok", "missing", "failed", "behind" (it lacks writes) or the layer's own word
	// The errors that the layer has counted since an administrator reset the counts.
	Reads      int64 `json:"read_errors,omitempty"`
	Writes     int64 `json:"write_errors,omitempty"`
	Flushes    int64 `json:"flush_errors,omitempty"`
	Corruption int64 `json:"corruption_errors,omitempty"` // blocks whose checksum did not match
	Generation int64 `json:"generation_errors,omitempty"` // blocks older than they should be
}

// Filling is a resync, resilver, replacement or comparison under way.
type Filling struct {
	What string  `json:"what"`
	Done float64 `json:"done"` // from 0 to 1; negative: not known
	Rate int64   `json:"rate"` // bytes per second; 0: not known
}

// Volume is what a directory stands on.
type Volume struct {
	Dir      string   `json:"dir"`
	Mount    string   `json:"mount,omitempty"` // where its file system is mounted
	Kind     Kind     `json:"kind"`
	Name     string   `json:"name"`  // of the volume for the layer's tools
	Level    string   `json:"level"` // by the layer's own name, such as raid1 or mirror
	Mirrored bool     `json:"mirrored"`
	State    State    `json:"state"`
	Why      string   `json:"why,omitempty"` // why the state is not known
	Devices  []Device `json:"devices,omitempty"`
	Filling  *Filling `json:"filling,omitempty"`
	// Unchecked means that the directory's files have no checksums although the layer has them for others: a side that
	// lacks writes cannot be told from one that has them.
	Unchecked bool `json:"unchecked,omitempty"`
	// Differing counts blocks that differ between the sides, by the layer's last comparison.
	Differing int64 `json:"differing,omitempty"`
}

// Limits of what is read and run.
const (
	maxText    = 1 << 20 // bytes of a file or an answer
	maxDevices = 64      // of a volume
	maxDepth   = 8       // layers below each other
	runLimit   = 5 * time.Second
	keepAnswer = time.Minute // how long the answer of a tool is used
)

// Reader looks at this machine's storage. The zero value is ready. Any goroutine may call its methods.
type Reader struct {
	// Root is a directory with recorded proc and sys for tests; "" is the machine itself.
	Root string
	// Run runs a tool and returns its output; nil runs it on this machine.
	Run func(ctx context.Context, name string, args ...string) ([]byte, error)

	mu      sync.Mutex // guards answers
	answers map[string]answer
}

// Look returns what the directories stand on, in their order. It returns when ctx ends, except while the kernel holds
// it in a call for a directory on a dead disk.
func (r *Reader) Look(ctx context.Context, dirs ...string) []Volume {
	mounts, err := r.mounts()
	var out []Volume
	for _, dir := range dirs {
		v := Volume{Dir: dir, Kind: Other, State: Unknown}
		real := dir
		if r.Root == "" {
			if p, err := filepath.EvalSymlinks(dir); err == nil {
				real = p
			}
		}
		m, ok := mountOf(mounts, real)
		switch {
		case err != nil:
			v.Why = err.Error()
		case !ok:
			v.Why = "no mount of this machine has it"
		default:
			v.Mount = m.at
			r.describe(ctx, &v, m)
		}
		out = append(out, v)
	}
	return out
}

// describe fills in the volume below a mount.
func (r *Reader) describe(ctx context.Context, v *Volume, m mount) {
	switch {
	case m.fs == "btrfs":
		r.btrfs(ctx, v, m)
	case m.fs == "zfs":
		r.zfs(ctx, v, m)
	case strings.HasPrefix(m.source, "/dev/"):
		r.block(ctx, v, "/sys/dev/block/"+m.dev, 0)
	default:
		v.Kind, v.Name, v.Level, v.State = Other, m.source, m.fs, None
	}
}

// worst returns the worse of two states.
func worst(a, b State) State {
	order := []State{None, Whole, Resync, Errors, Degraded, Unknown}
	if slices.Index(order, a) >= slices.Index(order, b) {
		return a
	}
	return b
}

// judge sets the state of a mirror from its devices.
func (v *Volume) judge() {
	v.State = None
	if v.Mirrored {
		v.State = Whole
	}
	if v.Filling != nil && v.Mirrored {
		v.State = Resync
	}
	for _, d := range v.Devices {
		switch {
		case d.State != "ok" && v.Mirrored:
			v.State = worst(v.State, Degraded)
		case d.Reads+d.Writes+d.Flushes+d.Corruption+d.Generation > 0:
			v.State = worst(v.State, Errors)
		}
	}
	if v.Differing > 0 {
		v.State = worst(v.State, Errors)
	}
}

// path returns where a file of the machine is for this reader.
func (r *Reader) path(p string) string { return filepath.Join("/", r.Root, p) }

// text returns a small file, without the white space around it; "" if it cannot be read.
func (r *Reader) text(p string) string {
	b, err := r.read(p)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// names returns the entries of a directory, in order; nil if it cannot be read.
func (r *Reader) names(p string) []string {
	entries, err := os.ReadDir(r.path(p))
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries[:min(len(entries), 4*maxDevices)] {
		out = append(out, e.Name())
	}
	return out
}

// target returns the last element of the path that a link leads to, of the path itself if it is no link.
func (r *Reader) target(p string) string {
	real, err := filepath.EvalSymlinks(r.path(p))
	if err != nil {
		real = p
	}
	return filepath.Base(real)
}
