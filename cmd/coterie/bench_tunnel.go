package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/lib/fail"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/experiment"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

func benchTunnel() *cobra.Command {
	var f experimentFlags
	var csvFile string
	var payloads []string
	o := experiment.TunnelOptions{Tunnel: workload.PublishedTunnel}
	c := &cobra.Command{
		Use: "tunnel", Short: "What compression of the link gives: 10,000 rows, a commit per 250", Args: args(0, "no arguments"),
		Long: `Inserts rows with one long column, a commit per 250, on a primary with synchronous secondaries behind a narrow link, with LOG_COMPRESSION OFF and
AUTO, with constant rows, with text and with random ones in turns. The links of the lab are of 20 Mbit/s and 20 ms unless --link says otherwise, which needs root.` + targetHelp,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if err := errors.Join(atLeastOne(c, "rows", "bytes", "commit-every"), f.sizes(c, "rows", "bytes", "commit-every")); err != nil {
				return err
			}
			n := need{network: true, links: "lan"} // the lab is made on a fast one
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
				log := &minutes{w: out, took: map[workload.Payload]map[string][]float64{}}
				o.CSV = log.run
				defer func() { err = errors.Join(err, log.averages(), out.Close()) }()
			}
			return measureAll(c, &f.suiteOptions, "The tunnel", []stageOf{{n, []piece{tunnelPiece(o, linkWord(f.link, tunnelLink))}}})
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

// minutes logs the runs of the tunnel as the published script does: a line timestamp,minutes for each, here with arm and payload behind
// them; at the end the averages, and by how much the second arm differs.
type minutes struct {
	w    io.Writer
	arms []string
	took map[workload.Payload]map[string][]float64
	err  error
}

func (m *minutes) run(at time.Time, took time.Duration, payload workload.Payload, arm string) {
	if !slices.Contains(m.arms, arm) {
		m.arms = append(m.arms, arm)
	}
	if m.took[payload] == nil {
		m.took[payload] = map[string][]float64{}
	}
	m.took[payload][arm] = append(m.took[payload][arm], took.Minutes())
	m.line(at.UTC().Format("2006-01-02T15:04:05.000Z"), took.Minutes(), arm, payload)
}

func (m *minutes) line(what string, v float64, arm string, payload workload.Payload) {
	_, err := fmt.Fprintf(m.w, "%s,%.9f,%s,%s\n", what, v, arm, payload)
	m.err = errors.Join(m.err, err)
}

func (m *minutes) averages() error {
	slices.Sort(m.arms)
	if i := slices.Index(m.arms, "OFF"); i > 0 {
		m.arms[0], m.arms[i] = m.arms[i], m.arms[0] // it is what the other is compared with
	}
	for _, payload := range slices.Sorted(maps.Keys(m.took)) {
		var means []float64
		for _, arm := range m.arms {
			if len(m.took[payload][arm]) == 0 {
				continue // the run was ended before
			}
			sum := 0.0
			for _, v := range m.took[payload][arm] {
				sum += v
			}
			means = append(means, sum/float64(len(m.took[payload][arm])))
			m.line("average", means[len(means)-1], arm, payload)
		}
		if len(means) == 2 {
			m.line("difference_pct", 100*(means[0]-means[1])/means[0], m.arms[1], payload)
		}
	}
	return m.err
}

func tunnelPiece(o experiment.TunnelOptions, link string) piece {
	return piece{"tunnel", "The tunnel", "What does compression give?", func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) {
		if b.Group != nil {
			if b.Links == nil {
				return benchreport.Experiment{}, errors.New("its links cannot be shaped, and without a narrow link there is nothing to see: it needs a lab with network namespaces (root)")
			}
			if err := b.Links.Shape(ctx, link); err != nil {
				return benchreport.Experiment{}, err
			}
			o.Link = link
		}
		return b.Tunnel(ctx, o)
	}}
}
