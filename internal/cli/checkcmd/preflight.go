package checkcmd

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/nodecmd"
	"github.com/coteriedb/coterie/internal/provision/preflight"
)

// preflight looks at this machine and at the others that are to be nodes of a group.
func runPreflight(c *cobra.Command, dir string, f *nodecmd.NodeFlags, hosts []string, asJSON bool) error {
	ports, err := f.PortNumbers()
	if err != nil {
		return err
	}
	a := &preflight.Answerer{Dir: dir, Ports: ports}
	if err := a.Listen(c.Context()); err != nil {
		return err
	}
	defer a.Close()
	own, err := preflight.DescribeMachine(c.Context(), dir)
	if err != nil {
		return err
	}
	r := &check.Registry{}
	r.Add("this host", 0, func(context.Context) ([]check.Finding, error) { return preflight.JudgeMachine(own, dir), nil })
	for _, h := range hosts {
		r.Add(h, preflight.Limit, func(ctx context.Context) ([]check.Finding, error) { return preflight.Other(ctx, own, h, ports) })
	}
	found := r.Run(c.Context())
	if err := printFindings(c, found, asJSON); err != nil {
		return err
	}
	if check.Worst(found).Worse(check.Warning) {
		return cli.ErrUnhealthy
	}
	return nil
}

// answerPreflights answers other machines for a while.
func answerPreflights(c *cobra.Command, dir string, f *nodecmd.NodeFlags) error {
	ports, err := f.PortNumbers()
	if err != nil {
		return err
	}
	a := &preflight.Answerer{Dir: dir, Ports: ports}
	if err := a.Listen(c.Context()); err != nil {
		return err
	}
	defer a.Close()
	cli.Say(c, "answering preflights on port %s for %v; Ctrl-C ends it", ports[0], preflight.AnswerLimit)
	select {
	case <-c.Context().Done():
	case <-time.After(preflight.AnswerLimit):
	}
	return nil
}
