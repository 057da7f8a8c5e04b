package checkcmd

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/nodecmd"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/provision/preflight"
)

// runPreflight examines this host and the other hosts of a planned group.
func runPreflight(ctx context.Context, dir string, f *nodecmd.NodeFlags, hosts []string) ([]check.Finding, error) {
	ports, err := f.PortNumbers()
	if err != nil {
		return nil, err
	}
	a := &preflight.Answerer{Dir: dir, Ports: ports}
	if err := a.Listen(ctx); err != nil {
		return nil, err
	}
	defer a.Close()
	own, err := preflight.DescribeMachine(ctx, dir)
	if err != nil {
		return nil, err
	}
	r := &check.Registry{}
	r.Add("this host", 0, func(context.Context) ([]check.Finding, error) { return preflight.JudgeMachine(own, dir), nil })
	for _, h := range hosts {
		r.Add(h, preflight.Limit, func(ctx context.Context) ([]check.Finding, error) { return preflight.Other(ctx, own, h, ports) })
	}
	return r.Run(ctx), nil
}

// answerPreflights answers the preflights of other hosts for preflight.AnswerLimit.
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
	_ = retry.Sleep(c.Context(), preflight.AnswerLimit)
	return nil
}
