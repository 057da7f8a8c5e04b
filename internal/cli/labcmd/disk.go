package labcmd

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/faultfs"
	"github.com/coteriedb/coterie/internal/lab/mirror"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// flipped is how many blocks of 4 KiB a flip changes.
const flipped = 64

// diskFlags are those of lab disk.
type diskFlags struct {
	full, stall, failing, broken, heal, asJSON bool
	slow                                       time.Duration
	files                                      string
	side, flip                                 string // of a mirror
}

func (f *diskFlags) add(c *cobra.Command) {
	fs := c.Flags()
	fs.BoolVar(&f.full, "full", false, "no block is free")
	fs.DurationVar(&f.slow, "slow", 0, "every change and sync takes `D` longer")
	fs.BoolVar(&f.stall, "stall", false, "changes and syncs wait until the disk is healed")
	fs.BoolVar(&f.failing, "fail", false, "syncs fail")
	fs.BoolVar(&f.broken, "break", false, "writes and syncs fail")
	fs.StringVar(&f.files, "files", "", "of --fail and --break: only the files that match the `PATTERN`")
	fs.BoolVar(&f.heal, "heal", false, "end the fault")
	fs.StringVar(&f.side, "break-mirror", "", "lose a `SIDE` of the mirror: first, second (default) or both")
	fs.Lookup("break-mirror").NoOptDefVal = mirror.Sides[1]
	fs.StringVar(&f.flip, "flip", "", "make the first blocks of a `FILE` wrong, each on one side of the mirror")
	fs.BoolVar(&f.asJSON, "json", false, "print the disk's state as JSON")
}

// run puts a fault of the node's own disk in force, and says how the disk is.
func (f *diskFlags) run(c *cobra.Command, l *lab.Lab, node string) error {
	chosen := map[faultfs.Fault]bool{
		{Kind: faultfs.Full}: f.full, {Kind: faultfs.Slow, Delay: f.slow}: c.Flags().Changed("slow"), {Kind: faultfs.Stalled}: f.stall,
		{Kind: faultfs.Failing, Files: f.files}: f.failing, {Kind: faultfs.Broken, Files: f.files}: f.broken, {}: f.heal,
	}
	fault, n := faultfs.Fault{}, 0
	for k, on := range chosen {
		if on {
			fault, n = k, n+1
		}
	}
	var s faultfs.State
	var err error
	switch {
	case n > 1:
		return fail.Usagef("choose one of --full, --slow, --stall, --fail, --break and --heal")
	case f.files != "" && !f.failing && !f.broken:
		return fail.Usagef("--files needs --fail or --break")
	case n == 1:
		s, err = l.Disk(c.Context(), node, fault)
	default:
		s, err = l.ShowDisk(c.Context(), node)
	}
	if err != nil {
		return err
	}
	if f.asJSON {
		return cli.PrintJSON(c, s)
	}
	cli.Say(c, "the disk of %s is %s; waiting now %d, held up so far %d, refused so far %d", node, s.Fault, s.Waiting, s.Delayed, s.Refused)
	return nil
}

// runMirror breaks or heals the mirror of a node, and says how it is.
func (f *diskFlags) runMirror(c *cobra.Command, l *lab.Lab, node string) error {
	lose, err := f.checkMirror(c)
	if err != nil {
		return err
	}
	var s mirror.State
	changed := 0
	if f.heal {
		s, err = l.HealMirror(c.Context(), node)
	} else {
		s, err = l.Mirror(c.Context(), node, func(_ context.Context, d mirror.Disk) (err error) {
			if f.flip != "" {
				changed, err = d.Flip(filepath.Join(d.At, f.flip), flipped)
				return err
			}
			return d.Break(lose...)
		})
	}
	if err != nil {
		return err
	}
	if f.asJSON {
		return cli.PrintJSON(c, s)
	}
	if f.flip != "" {
		cli.Say(c, "%d blocks of %s are wrong now, each on one side", changed, f.flip)
	}
	cli.Say(c, "%s: %s", node, s)
	return nil
}

// checkMirror returns the sides that are to be lost, or refuses what a mirror cannot do.
func (f *diskFlags) checkMirror(c *cobra.Command) ([]string, error) {
	lose, known := map[string][]string{"": nil, "first": mirror.Sides[:1], "second": mirror.Sides[1:], "both": mirror.Sides}[f.side]
	chosen := 0
	for _, on := range []bool{f.side != "", f.flip != "", f.heal} {
		if on {
			chosen++
		}
	}
	switch {
	case slices.ContainsFunc([]string{"full", "slow", "stall", "fail", "break", "files"}, c.Flags().Changed):
		return nil, fail.Usagef("this lab has mirrors: choose one of --break-mirror, --flip and --heal; the other faults need a lab made with --disk-faults")
	case !known:
		return nil, fail.Usagef("--break-mirror=%s: first, second or both", f.side)
	case chosen > 1:
		return nil, fail.Usagef("choose one of --break-mirror, --flip and --heal")
	case f.flip != "" && !filepath.IsLocal(f.flip):
		return nil, fail.Usagef("--flip %s: a path below the node's directory, as pgdata/base/5/16384", f.flip)
	}
	return lose, nil
}
