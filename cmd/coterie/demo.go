package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/coteriedb/coterie/internal/lib/fail"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/demo"
	"github.com/coteriedb/coterie/internal/lab"
)

func demoCommand() *cobra.Command {
	var o demo.Options
	var lo lab.Options
	var asJSON bool
	c := &cobra.Command{
		Use: "demo", GroupID: "try", Short: "Kill a primary under load, and see what was lost",
		Long: `Makes a group of three replicas on this machine, loads a TPC-C-derived database through its listener, and under the load of 8 clients
kills the primary with everything it runs. It shows what the others decide, has the dead node come back, moves the leadership as
planned, and then compares, on every replica, every row that was ever acknowledged, the twelve consistency conditions, and the
contents. It takes about two minutes, and nothing of it is left afterwards but with --keep.

Exit code 1 if anything acknowledged was lost, if a condition is violated or if the replicas differ.

--broken shows that it can fail: just before the kill it stops the primary's walsenders and empties synchronous_standby_names behind
the agent's back. What the primary acknowledges then is on no other node: the demo must find it lost.`,
		Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if lo.Dir, err = demoDir(lo.Dir, "demo"); err != nil {
				return err
			}
			var f nodeFlags
			in, err := f.install(c.Context())
			if err != nil {
				return err
			}
			o.Out = c.OutOrStdout()
			if asJSON {
				o.Out = c.ErrOrStderr()
			}
			o.Terminal, o.Dir, o.Version, o.Server = isTerminal(o.Out), lo.Dir, version, in.Version+" in "+in.BinDir
			o.Up = func(ctx context.Context, progress func(string)) (observe.Lab, error) { return upLab(ctx, lo, progress) }
			r, err := demo.Run(c.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(c, r)
			}
			if err == nil && !r.Sound {
				err = errors.New("the group did not keep what it promised")
			}
			return err
		},
	}
	c.Flags().BoolVar(&o.Keep, "keep", false, "leave the group running at the end")
	c.Flags().BoolVar(&o.Broken, "broken", false, "take the protection away before the kill: the demo must find rows lost")
	c.Flags().BoolVar(&asJSON, "json", false, "print the verdict as JSON, and the story to standard error")
	c.Flags().IntVar(&lo.Port, "port", 0, "of the first node's listener (default 6432)")
	c.Flags().StringVar(&lo.Net, "net", "", "loopback (default), or netns: every node in a network namespace of its own (root)")
	c.Flags().StringVar(&lo.Dir, "dir", "", "the lab's directory (default "+lab.DefaultDir()+"-demo)")
	return c
}

// demoDir is a directory that holds nothing yet.
func demoDir(dir, what string) (string, error) {
	if dir == "" {
		dir = lab.DefaultDir() + "-" + what
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) == 0 {
		return dir, nil
	}
	if pid, command, ok := lab.Maker(dir); ok {
		return "", fail.Refusedf("%s holds the lab of a command that still runs, process %d (%s): wait for its end, or give this one a place of its own with --dir%s", dir, pid, command, orPort(dir))
	}
	if _, err := lab.Open(dir); err != nil {
		return "", fail.Refusedf("%s is not empty and holds no lab: choose another directory with --dir", dir)
	}
	return "", fail.Refusedf("%s holds a lab of an earlier command; see it with: coterie lab status --dir %[1]s, end and remove it with: coterie lab down --dir %[1]s", dir)
}

// orPort is what a second lab beside the one in dir needs besides a directory: those on the loopback interface share its ports.
func orPort(dir string) string {
	if l, err := lab.Open(dir); err == nil && !l.Namespaced() {
		return ", and ports with --port"
	}
	return ""
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// labGroup is a lab as the demo wants it.
type labGroup struct {
	*lab.Lab
	doors *doors
}

func upLab(ctx context.Context, o lab.Options, progress func(string)) (observe.Lab, error) {
	o.Progress, o.Bound = progress, true
	l, err := raiseLab(ctx, o)
	if err != nil {
		return nil, err
	}
	d, err := openDoors(l)
	if err != nil {
		return nil, errors.Join(err, l.Down(context.WithoutCancel(ctx)))
	}
	return &labGroup{l, d}, nil
}

func (g *labGroup) Nodes() []string {
	var names []string
	for _, n := range g.Lab.Nodes() {
		names = append(names, n.Name)
	}
	return names
}

func (g *labGroup) Dir(node string) string { return filepath.Join(g.Lab.Dir(), node) }

func (g *labGroup) Agent(node string) observe.Agent {
	l, err := config.NewLayout(g.Dir(node))
	if err != nil {
		return api.NewClient(filepath.Join(g.Dir(node), "no-such-socket"))
	}
	return api.NewClient(l.AgentSock())
}

// DSN leads to the node's own server by its private socket, whoever leads.
func (g *labGroup) DSN(node string) string {
	return fmt.Sprintf("host=%s port=5432 user=postgres dbname=postgres sslmode=disable", g.doors.dir(node))
}

func (g *labGroup) Pause(_ context.Context, node string) error {
	return g.Lab.Pause(node, lab.WhatNode)
}
func (g *labGroup) Resume(_ context.Context, node string) error { return g.Lab.Resume(node) }
func (g *labGroup) Kill(_ context.Context, node string) error   { return g.Lab.Kill(node, "node") }
func (g *labGroup) Start(_ context.Context, node string) error  { return g.Lab.Start(node) }

func (g *labGroup) Leave() {
	g.doors.close()
	g.Lab.Leave()
}

func (g *labGroup) Down(ctx context.Context, keepFiles bool) error {
	g.doors.close()
	if keepFiles {
		return g.Stop(ctx)
	}
	return g.Lab.Down(ctx)
}
