// Command coterie gives PostgreSQL availability groups: this one binary is the agent of a node, the parent of its server, and the
// tool that administrators use.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

// version is set by the build.
var version = "development"

// Exit codes, the same for every command.
const (
	exitOK        = 0
	exitError     = 1
	exitUsage     = 2
	exitUnhealthy = 3
	exitRefused   = 4
)

// defaultNode is where a node is when nobody says otherwise.
const defaultNode = "/var/lib/coterie"

// codedError carries an exit code with an error.
type codedError struct {
	code int
	error
}

func (e codedError) Unwrap() error { return e.error }

func usage(format string, a ...any) error { return codedError{exitUsage, fmt.Errorf(format, a...)} }

func refused(format string, a ...any) error { return codedError{exitRefused, fmt.Errorf(format, a...)} }

func unhealthy(format string, a ...any) error {
	return codedError{exitUnhealthy, fmt.Errorf(format, a...)}
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "keeper" { // before anything else: the keeper links nothing it does not need to run
		os.Exit(keeper.Main(os.Args[2:]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	os.Exit(report(err))
}

func report(err error) int {
	if err == nil {
		return exitOK
	}
	code := exitError
	var known codedError
	var remote *api.Error
	switch {
	case errors.As(err, &known):
		code = known.code
	case errors.As(err, &remote):
		code = map[string]int{"refused": exitRefused, "unhealthy": exitUnhealthy, "usage": exitUsage}[remote.Kind]
		if code == 0 {
			code = exitError
		}
	case errors.Is(err, api.ErrNoAgent):
		code = exitUnhealthy
	}
	if msg := err.Error(); msg != "" {
		fmt.Fprintln(os.Stderr, "coterie: "+msg)
	}
	return code
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "coterie",
		Short: "Availability groups for unmodified PostgreSQL",
		Long: `Coterie gives PostgreSQL a primary and up to eight secondaries, automatic failover without lost commits, one address with
read-only routing, and an authenticated replication link.

To see it work on this machine:      coterie demo
To form a group on three machines:   coterie init            (on the first; it prints the next command)
                                     coterie join TOKEN      (on each other)

Exit codes: 0 ok, 1 error, 2 usage, 3 unhealthy, 4 refused for safety.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usage("%w; see %s --help", err, c.CommandPath())
	})
	root.PersistentFlags().String("node", defaultNode, "the node directory")
	root.AddGroup(&cobra.Group{ID: "node", Title: "A node:"}, &cobra.Group{ID: "group", Title: "The group:"}, &cobra.Group{ID: "try", Title: "To try it:"})
	root.AddCommand(initCommand(), joinCommand(false), joinCommand(true), agentCommand(), configCommand(), releaseCommand(),
		statusCommand(), checkCommand(), failoverCommand(), recoverCommand(), restartCommand(), tokenCommand(), removeCommand(), resumeCommand(), seedCommand(), setCommand(), explainCommand(), sqlCommand(), caCommand())
	root.AddCommand(languageCommands()...)
	root.AddCommand(labCommands()...)
	root.AddCommand(demoCommands()...)
	needCommand(root)
	return root
}

// needCommand makes a usage error of a command that a group of commands does not have; without one the group shows its help.
func needCommand(c *cobra.Command) {
	for _, sub := range c.Commands() {
		needCommand(sub)
	}
	if !c.HasSubCommands() || c.Runnable() {
		return
	}
	c.Args = func(c *cobra.Command, a []string) error {
		if len(a) > 0 {
			return usage("unknown command %q; see %s --help", a[0], c.CommandPath())
		}
		return nil
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
}

// args accepts exactly n arguments, which what names, and calls a wrong number a usage error.
func args(n int, what string) cobra.PositionalArgs { return between(n, n, what) }

// between accepts from least to most arguments, any number from least where most is negative.
func between(least, most int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, a []string) error {
		switch {
		case most >= 0 && len(a) > most:
			return usage("%s needs %s, and does not know what to do with %q; see %s --help", c.CommandPath(), what, strings.Join(a[most:], " "), c.CommandPath())
		case len(a) < least:
			return usage("%s needs %s; see %s --help", c.CommandPath(), what, c.CommandPath())
		}
		return nil
	}
}
