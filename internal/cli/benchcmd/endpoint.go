package benchcmd

import (
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/endpointbench"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/measure/goals"
)

func benchEndpointCommand() *cobra.Command {
	var o endpointbench.EndpointOptions
	var out sampleOutput
	c := &cobra.Command{
		Use: "endpoint", Short: "Measure the link between replicas: savings over slow and lossy networks, cost over short ones",
		Long: `Makes two real servers, in two network namespaces with an emulated link between them, and measures the published workload of a
replication tunnel by plain TCP with cubic, plain TCP with BBR by route, ssh -C where there is an sshd, and by this program's link, one after the
other; then commits one by one, commits under load, bulk, and, without namespaces, what the link costs on one machine. The published workload is always of its published size; of the rest nobody published conditions, so there
is no --preset. It needs root.`,
		Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(atLeastOne(c, "rounds"), checkOnly(o.Only, endpointbench.EndpointParts)); err != nil {
				return err
			}
			b := &endpointbench.EndpointBench{O: o, Progress: c.ErrOrStderr()}
			s := b.Run(c.Context())
			return saveSamples(c, s, out, func(w io.Writer) error {
				if err := s.Table(w); err != nil {
					return err
				}
				_, err := goals.Report(w, "endpoint", s.Figures)
				return err
			})
		},
	}
	withoutPreset(c, "the published workload is always of its published size, and of the rest nobody published conditions")
	c.Flags().Uint64Var(&o.Seed, "seed", 1, "of the links' randomness")
	c.Flags().IntVar(&o.Rounds, "rounds", 3, "how often each arm runs, in turn")
	c.Flags().StringSliceVar(&o.Only, "only", nil, "parts to measure: "+strings.Join(endpointbench.EndpointParts, ", ")+" (default all)")
	c.Flags().IntVar(&o.Port, "port", 28100, "first of four ports on this host, for the part lan")
	c.Flags().BoolVar(&out.asJSON, "json", false, "print the samples instead of the figures")
	c.Flags().StringVar(&out.file, "out", "bench-endpoint.json", "file for the samples")
	return c
}
