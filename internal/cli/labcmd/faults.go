package labcmd

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/cgroup"
	"github.com/coteriedb/coterie/internal/lab/faultfs"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/units"
)

// labFaultCommands are the verbs that break a node's disk and clock.
func labFaultCommands() []*cobra.Command {
	return []*cobra.Command{labDisk(), labPowerLoss(), labClock()}
}

func labDisk() *cobra.Command {
	var f diskFlags
	c := &cobra.Command{
		Use: "disk NODE", Short: "Make a node's disk full, slow, stalled or failing, lose a side of its mirror, or heal it", Args: cli.Args(1, "the node's name"),
		Long: `Breaks the disk of one node of a lab made with coterie lab up --disk-faults; PostgreSQL, the agent and the quorum member are all on it.
A new fault takes the place of the last. Reading goes on in all of them.

  --full    what needs another block gets ENOSPC; what a file has can be overwritten, and removing files makes no room
  --slow D  every change and every sync takes D longer
  --stall   every change and every sync waits in the kernel, where not even SIGKILL ends it, until --heal
  --fail    every sync gets EIO; writing goes on
  --break   every write and every sync gets EIO

With --files the last two are of the files that match: a pattern for the path below the node's directory, or for the name if the
pattern has no slash.

Of a lab made with coterie lab up --storage mirror, the node is on a mirror of btrfs:

  --break-mirror[=SIDE]  the second side is lost, or the first, or both: every request to it fails
  --flip FILE            the first blocks of the file, by its path below the node's directory, become wrong, each on one side
  --heal                 the sides come back, a scrub makes them equal, and the counts of errors are reset

Without any of them it only shows the disk.`,
		Example: "  coterie lab disk n2 --slow 50ms\n  coterie lab disk n2 --fail --files 'pgdata/pg_wal/0*'\n  coterie lab disk n2 --heal\n  coterie lab disk n2 --break-mirror",
		RunE: func(c *cobra.Command, a []string) error {
			l, err := openLab(c)
			switch {
			case err != nil:
				return err
			case l.Mirrored():
				return f.runMirror(c, l, a[0])
			case f.side != "" || f.flip != "":
				return fail.Usagef("--break-mirror and --flip are for a lab with mirrors: make one with coterie lab up --storage mirror")
			}
			return f.run(c, l, a[0])
		},
	}
	f.add(c)
	return c
}

func labPowerLoss() *cobra.Command {
	var loss faultfs.Loss
	c := &cobra.Command{
		Use: "power-loss NODE...", Short: "Take the power of nodes at one moment", Args: cobra.MinimumNArgs(1),
		Long: `Ends every process of the nodes at one moment and takes from their disks what was written and not synced, names of files too, in a
lab made with coterie lab up --disk-faults. As on a real disk a sync of a file keeps its contents and its name, a sync of a directory the
names in it; what is older than a minute has reached the disk by itself. coterie lab start brings a node back.`,
		Example: "  coterie lab power-loss n1 n2\n  coterie lab power-loss n1 --kept 0.5",
		RunE: func(c *cobra.Command, a []string) error {
			l, err := openLab(c)
			if err != nil {
				return err
			}
			lost, err := l.PowerLoss(c.Context(), loss, a...)
			for _, n := range a {
				if is, ok := lost[n]; ok {
					cli.Say(c, "%s is without power; lost %d blocks of %d files and %d changes of names", n, is.Blocks, is.Files, is.Names)
				}
			}
			return err
		},
	}
	c.Flags().Float64Var(&loss.Kept, "kept", 0, "share of what was not synced that has reached the disk all the same, 0 to 1")
	c.Flags().Uint64Var(&loss.Seed, "seed", 0, "of the choice which share")
	return c
}

func labClock() *cobra.Command {
	var offset time.Duration
	var asJSON bool
	c := &cobra.Command{
		Use: "clock NODE --offset D", Short: "Make the processes of a node believe another time of day", Args: cli.Args(1, "the node's name"),
		Long: `Shifts the wall clock of a node: of the processes that run now, at once, and of those that they start, within half a second. The
offset is from the true time, in whole seconds; 0 ends it. x86-64 only.

Not shifted: CLOCK_MONOTONIC and CLOCK_BOOTTIME, so no lease and no timeout; the times of files, which the kernel takes from its own clock.`,
		Example: "  coterie lab clock n2 --offset -1h\n  coterie lab clock n2 --offset 0",
		RunE: func(c *cobra.Command, a []string) error {
			if !c.Flags().Changed("offset") {
				return fail.Usagef("say by how much: coterie lab clock %s --offset 1h (or -1h; 0 for the true time)", a[0])
			}
			l, err := openLab(c)
			if err != nil {
				return err
			}
			s, err := l.Clock(a[0], offset)
			if err != nil {
				return err
			}
			if asJSON {
				return cli.PrintJSON(c, s)
			}
			cli.Say(c, "the clock of %s is off by %v: %d of %d processes; leases and timeouts go by clocks that are not shifted", a[0], s.Offset, s.Shifted, s.Processes)
			return nil
		},
	}
	c.Flags().DurationVar(&offset, "offset", 0, "from the true time, as 1h or -30m")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// machine has the flags of lab up that describe the machines of its nodes.
type machine struct {
	disks   bool
	storage string
	cpu     float64
	memory  string
	mbps    float64
}

func (m *machine) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&m.storage, "storage", "", "mirror: put every node on a mirror of its own, which coterie lab disk can break (btrfs RAID 1 on loop devices; root)")
	f.BoolVar(&m.disks, "disk-faults", false, "put every node on a disk of its own that coterie lab disk can break (FUSE)")
	f.Float64Var(&m.cpu, "node-cpu", 0, "processors that each node may use, as 0.5")
	f.StringVar(&m.memory, "node-memory", "", "memory that each node may use, as 512MiB")
	f.Float64Var(&m.mbps, "node-mbps", 0, "rate of every link between two nodes in Mbit/s, with --net netns")
}

// set puts into the options what the flags said, or refuses what this lab cannot have.
func (m *machine) set(o *lab.Options) error {
	switch {
	case m.mbps < 0:
		return fail.Usagef("--node-mbps %v: a rate is above 0", m.mbps)
	case m.mbps > 0 && o.Net != lab.NetNamespaces:
		return fail.Usagef("--node-mbps needs nodes with links of their own, and on the loopback interface they share one that has no rate: add --net netns, or leave it out")
	case m.cpu < 0:
		return fail.Usagef("--node-cpu %v: a share is above 0", m.cpu)
	}
	o.Disks, o.Storage, o.Caps.CPU = m.disks, m.storage, m.cpu
	if m.mbps > 0 {
		o.Links.RateBits = int64(m.mbps * 1e6)
		if err := o.Links.Validate(); err != nil {
			return fail.Usagef("--node-mbps %v: %w", m.mbps, err)
		}
	}
	if m.memory != "" {
		n, err := units.ParseBytes(m.memory, cgroup.MinMemory)
		if err != nil {
			return fail.Usagef("--node-memory %s: %w", m.memory, err)
		}
		o.Caps.Memory = n
	}
	if err := o.Caps.Check(); err != nil {
		return fail.Usagef("%w", err)
	}
	return nil
}

// nodeFaults says in a few words what is done to a node of the lab.
func nodeFaults(r lab.Replica) string {
	var out []string
	if r.Disk != nil && !r.Disk.Served {
		out = append(out, "disk dead")
	} else if r.Disk != nil && r.Disk.Kind != faultfs.Healthy {
		out = append(out, "disk "+r.Disk.Fault.String())
	}
	if r.Mirror != nil && r.Mirror.String() != "mirror whole" {
		out = append(out, r.Mirror.String())
	}
	if r.Clock != nil && r.Clock.Offset != 0 {
		out = append(out, fmt.Sprintf("clock %+v", r.Clock.Offset))
	}
	if len(out) == 0 {
		return ""
	}
	return " [" + strings.Join(out, ", ") + "]"
}
