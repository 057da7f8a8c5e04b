package labcmd

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/bed"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/daemon"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Lab are the verbs of a group on one machine.
func Lab() []*cobra.Command {
	c := &cobra.Command{
		Use: "lab", GroupID: "try", Short: "Run a whole group on this machine, and break it",
		Long: `Runs a whole group on this machine: ordinary nodes, made by coterie init, join and witness and run by coterie agent, each in a
directory and on ports of its own. Everything a node does elsewhere it does here; kill, pause and start are there to see it.

With --net netns (as root) every node has a network and an address of its own, and links that link, cut and heal make slow, lossy or
dead while everything runs.

As root the lab is in /var/tmp/coterie-lab and its servers run as user ` + daemon.ServerUserName + `, else it is in ~/.local/state/coterie-lab.`,
		Example: `  coterie lab up
  psql "$(coterie lab status --json | jq -r .listener.read_write)"
  coterie lab kill n1 && coterie lab status
  coterie lab start n1
  coterie lab down

  coterie lab up --net netns --links wan-good
  coterie lab cut n1 nodes && coterie lab status
  coterie lab heal`,
	}
	c.PersistentFlags().String("dir", "", "the lab's directory (default "+lab.DefaultDir()+")")
	c.AddCommand(labUp(), labStatus(), labDown(), labLogs(), labKill(),
		labVerb("start", "Start a node that is down", "%s runs", (*lab.Lab).Start),
		labPause(),
		labVerb("resume", "Continue a paused node", "%s goes on", (*lab.Lab).Resume),
		labLink(), labCut(), labHeal(), labExec())
	c.AddCommand(labFaultCommands()...)
	return []*cobra.Command{c}
}

func openLab(c *cobra.Command) (*lab.Lab, error) {
	dir, _ := c.Flags().GetString("dir")
	return lab.Open(dir)
}

func labUp() *cobra.Command {
	var o lab.Options
	var links string
	var m machine
	var asJSON bool
	c := &cobra.Command{
		Use: "up", Short: "Make the lab, or start what is down in it", Args: cli.Args(0, "no arguments"),
		Long: `Makes a lab and returns when every replica is SYNCHRONIZED. Of a lab that is there it starts what is down; number, ports, profile,
disks and limits are then as they were made. If it fails, nothing stays but with --keep.

On the loopback interface node i has five ports: clients that write at port + 10(i-1), clients that read at the next, then the
endpoint, http and https. With --net netns every node has a network namespace and an address of its own, and the same ports: 5432, 5433,
5022, 8008 and 8443; this host reaches them all. That needs root, and the program stays what it is: coterie init, join, witness and agent.`,

		RunE: func(c *cobra.Command, _ []string) error {
			o.Dir, _ = c.Flags().GetString("dir")
			if o.Replicas < 1 {
				return fail.Usagef("--replicas %d: a group has 1 to 9", o.Replicas)
			}
			var err error
			if o.Links, err = linkem.ParseShape(links); err != nil {
				return fail.Usagef("--links: %w", err)
			}
			if err := m.set(&o); err != nil {
				return err
			}
			start := time.Now()
			o.Progress = func(s string) { cli.Say(c, "%5.1f s  %s", time.Since(start).Seconds(), s) }
			l, err := bed.RaiseLab(c.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				return printLab(c, l, true)
			}
			if o.Empty {
				return sayByHand(c, l)
			}
			sayUp(c, l, time.Since(start))
			return printLab(c, l, false)
		},
	}
	f := c.Flags()
	f.IntVar(&o.Replicas, "replicas", 3, "number of replicas, the primary among them")
	f.BoolVar(&o.Witness, "witness", false, "a witness, too")
	f.BoolVar(&o.Empty, "empty", false, "make an empty lab and print the commands that form its group by hand")
	f.BoolVar(&o.NoGroup, "no-group", false, "make nodes that have joined each other, and no group yet: CREATE AVAILABILITY GROUP makes it (see docs/language.md)")
	f.IntVar(&o.Port, "port", 0, "first port of the first node, on the loopback interface (default 6432)")
	f.StringVar(&o.Net, "net", "", "loopback: all nodes at 127.0.0.1 (default); netns: a network namespace for each (root)")
	f.StringVar(&links, "links", "", "what links between nodes are like, with --net netns: "+linkem.ShapeHelp)
	f.StringVar(&o.Profile, "profile", "default", "lease profile: default, fast or wan")
	f.BoolVar(&o.Keep, "keep", false, "leave what there is if it fails")
	f.BoolVar(&asJSON, "json", false, "print the status as JSON")
	m.flags(c)
	return c
}

func sayUp(c *cobra.Command, l *lab.Lab, took time.Duration) {
	s, err := l.Status(c.Context())
	if err == nil && s.Draft && s.Primary != nil {
		cli.Say(c, "%5.1f s  every node has joined, and there is no group yet; %s has the data. On it: coterie sql --node %s\n", took.Seconds(), *s.Primary, filepath.Join(l.Dir(), *s.Primary))
		return
	}
	cli.Say(c, "%5.1f s  every replica is SYNCHRONIZED\n", took.Seconds())
}

func sayByHand(c *cobra.Command, l *lab.Lab) error {
	w := c.OutOrStdout()
	cli.Linef(w, "An empty lab is in %s. Form its group by hand, each node in a terminal of its own; every TOKEN works once:\n\n", l.Dir())
	for _, line := range l.ByHand() {
		_, _ = fmt.Fprintln(w, line)
	}
	_, err := fmt.Fprintf(w, "\nThen   coterie lab up --dir %s   makes the role of the lab's connection strings, and starts what is down.\n", l.Dir())
	return err
}

func labStatus() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "status", Short: "Show the nodes, their processes, and how to connect", Args: cli.Args(0, "no arguments"),
		Long: `Shows every node: its role, its state, its processes, its directory, and the connection strings of the group. It answers within a
second whatever is dead.`,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := openLab(c)
			if err != nil {
				return err
			}
			return printLab(c, l, asJSON)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// headLine returns what a lab's group does.
func headLine(s lab.Status) string {
	if s.Group == "" {
		return "no node answers"
	}
	primary := "none takes writes"
	if s.Primary != nil {
		primary = *s.Primary
	}
	return fmt.Sprintf("primary %s   epoch %d   %d votes   commits wait for %s   automatic failover: %s", primary, s.Epoch, s.Voters, s.WaitsFor, s.Failover)
}

func printLab(c *cobra.Command, l *lab.Lab, asJSON bool) error {
	s, err := l.Status(c.Context())
	if err != nil {
		return err
	}
	if asJSON {
		return cli.PrintJSON(c, s)
	}
	w := c.OutOrStdout()
	cli.Linef(w, "%s\n\n", headLine(s))
	t := tabwriter.NewWriter(w, 2, 8, 3, ' ', 0)
	_, _ = fmt.Fprintln(t, "NODE\tROLE\tSYNCHRONIZATION\tCONNECTED\tPROCESSES\tAGENT\tKEEPER\tPOSTGRES\tNOW")
	for _, r := range append(s.Replicas, s.Witnesses...) {
		sync, role := string(r.Sync), string(r.Role)
		if r.Listener == nil {
			sync, role = "-", "witness"
		}
		cli.Linef(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Name, role, sync, r.Connected, r.State, pid(r.PIDs.Agent), pid(r.PIDs.Keeper),
			pid(r.PIDs.Postgres), r.Now+nodeFaults(r))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	cli.Linef(w, "\nread-write  %s\nread-only   %s\n", s.Listener.ReadWrite, s.Listener.ReadOnly)
	for _, r := range s.Replicas {
		if r.Console != "" && r.AgentAnswers {
			cli.Linef(w, "console     %s in a browser, with user and password of the lines above\n", r.Console)
			break
		}
	}
	cli.Linef(w, "nodes are in %s\n", s.Dir)
	return printNetwork(w, s)
}

func pid(p *int) string {
	if p == nil {
		return "-"
	}
	return strconv.Itoa(*p)
}

func labDown() *cobra.Command {
	var keep, asJSON bool
	c := &cobra.Command{
		Use: "down", Short: "Stop every node and remove the lab", Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := openLab(c)
			if err != nil {
				return err
			}
			end := l.Down
			if keep {
				end = l.Stop
			}
			if err := end(c.Context()); err != nil {
				return err
			}
			if asJSON {
				return cli.PrintJSON(c, map[string]any{"dir": l.Dir(), "removed": !keep})
			}
			if keep {
				cli.Say(c, "every node is stopped; %s is kept: coterie lab up starts it again", l.Dir())
			} else {
				cli.Say(c, "every node is stopped, and %s removed", l.Dir())
			}
			return nil
		},
	}
	c.Flags().BoolVar(&keep, "keep", false, "keep the nodes' directories")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func labLogs() *cobra.Command {
	var follow, asJSON bool
	var last int
	c := &cobra.Command{
		Use: "logs [NODE]", Short: "Show what the nodes logged last",
		Args: func(c *cobra.Command, a []string) error {
			if len(a) > 1 {
				return fail.Usagef("%s takes one node at most; see %s --help", c.CommandPath(), c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, a []string) error {
			l, err := openLab(c)
			if err != nil {
				return err
			}
			node := ""
			if len(a) == 1 {
				node = a[0]
			}
			w := c.OutOrStdout()
			e := json.NewEncoder(w)
			return l.Logs(c.Context(), node, last, follow, func(line lab.LogLine) {
				if asJSON {
					_ = e.Encode(line) // standard output is closed when this fails
					return
				}
				_, _ = fmt.Fprintf(w, "%s %s: %s\n", line.Node, line.File, cli.Printable(line.Line))
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is logged from now on")
	c.Flags().IntVarP(&last, "lines", "n", 20, "how many lines of each log")
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per line")
	return c
}

func labKill() *cobra.Command {
	var what string
	c := &cobra.Command{
		Use: "kill NODE", Short: "Kill a node, or one of its processes (SIGKILL)", Args: cli.Args(1, "the node's name"),
		Long:    `Kills every process of a node at one instant, as a power cut does, or one of its processes.`,
		Example: "  coterie lab kill n1\n  coterie lab kill n2 --what postgres",
		RunE: func(c *cobra.Command, a []string) error {
			l, err := openLab(c)
			if err != nil {
				return err
			}
			if err := l.Kill(a[0], what); err != nil {
				return err
			}
			if what == lab.WhatNode {
				cli.Say(c, "%s is dead; start it again with: coterie lab start %s", a[0], a[0])
			} else {
				cli.Say(c, "the %s of %s is dead", what, a[0])
			}
			return nil
		},
	}
	c.Flags().StringVar(&what, "what", lab.WhatNode, "node, agent, keeper or postgres")
	return c
}

func labPause() *cobra.Command {
	var what string
	c := &cobra.Command{
		Use: "pause NODE", Short: "Stop a node, or one of its processes (SIGSTOP)", Args: cli.Args(1, "the node's name"),
		Long: `Stops every process of a node, as a machine that hangs does, or one part of it: with --what postgres its server and all backends. A
secondary whose server is paused acknowledges nothing, and its node still votes.`,
		Example: "  coterie lab pause n1\n  coterie lab pause n2 --what postgres",
		RunE: func(c *cobra.Command, a []string) error {
			l, err := openLab(c)
			if err != nil {
				return err
			}
			if err := l.Pause(a[0], what); err != nil {
				return err
			}
			if what == lab.WhatNode {
				cli.Say(c, "%s is paused; continue it with: coterie lab resume %[1]s", a[0])
			} else {
				cli.Say(c, "the %s of %s is paused; continue it with: coterie lab resume %[2]s", what, a[0])
			}
			return nil
		},
	}
	c.Flags().StringVar(&what, "what", lab.WhatNode, "node, agent, keeper or postgres")
	return c
}

func labVerb(verb, short, done string, do func(*lab.Lab, string) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NODE", Short: short, Args: cli.Args(1, "the node's name"),
		RunE: func(c *cobra.Command, a []string) error {
			l, err := openLab(c)
			if err != nil {
				return err
			}
			if err := do(l, a[0]); err != nil {
				return err
			}
			cli.Say(c, done, a[0])
			return nil
		},
	}
}
