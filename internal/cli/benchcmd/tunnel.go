package benchcmd

import (
	"errors"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/bed"
	"github.com/coteriedb/coterie/internal/bench/experiment"
	"github.com/coteriedb/coterie/internal/bench/suite"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

func benchTunnel() *cobra.Command {
	var f experimentFlags
	var csvFile string
	var payloads []string
	o := experiment.TunnelOptions{Tunnel: workload.PublishedTunnel}
	c := &cobra.Command{
		Use: "tunnel", Short: "Measure the compression of the link: 10,000 rows, a commit per 250", Args: cli.Args(0, "no arguments"),
		Long: `Inserts rows with one long column, a commit per 250, on a primary with synchronous secondaries behind a narrow link, with LOG_COMPRESSION OFF and
AUTO, with constant rows, with text and with random ones in turns. The links of the lab are of 20 Mbit/s and 20 ms unless --link says otherwise, which needs root.` + targetHelp,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if err := errors.Join(atLeastOne(c, "rows", "bytes", "commit-every"), f.sizes(c, "rows", "bytes", "commit-every")); err != nil {
				return err
			}
			n := bed.Need{Network: true, Links: "lan"} // the lab is made with fast links
			o.Tunnel.Pipelined = true
			o.Payloads = nil
			for _, p := range payloads {
				if !slices.Contains(workload.Payloads, workload.Payload(p)) {
					return fail.Usagef("--payload %s: choose among %v", p, workload.Payloads)
				}
				o.Payloads = append(o.Payloads, workload.Payload(p))
			}
			if csvFile != "" {
				out, err := os.Create(csvFile)
				if err != nil {
					return err
				}
				log := &suite.Minutes{W: out, Took: map[workload.Payload]map[string][]float64{}}
				o.CSV = log.Run
				defer func() { err = errors.Join(err, log.Averages(), out.Close()) }()
			}
			return measureAll(c, &f.Options, "The tunnel", []suite.BedRun{{Need: n, Experiments: []suite.Experiment{suite.TunnelExperiment(o, linkWord(f.Link, suite.TunnelLink))}}})
		},
	}
	f.add(c)
	c.Flags().IntVar(&o.Tunnel.Rows, "rows", workload.PublishedTunnel.Rows, "of each run")
	c.Flags().IntVar(&o.Tunnel.Bytes, "bytes", workload.PublishedTunnel.Bytes, "of the column")
	c.Flags().IntVar(&o.Tunnel.Every, "commit-every", workload.PublishedTunnel.Every, "rows of a transaction")
	c.Flags().StringSliceVar(&payloads, "payload", []string{string(workload.PayloadConstant), string(workload.PayloadText), string(workload.PayloadRandom)}, "what is in the column: constant, as published; zeros; text; random")
	c.Flags().StringVar(&csvFile, "minutes", "", "write `FILE` with a line timestamp,minutes,arm,payload for each run, as the published script does, then averages and differences")
	return c
}
