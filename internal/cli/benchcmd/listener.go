package benchcmd

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/bench/listenerbench"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

func benchListenerCommand() *cobra.Command {
	var o listenerbench.ListenerOptions
	var out sampleOutput
	c := &cobra.Command{
		Use: "listener", Short: "Measure the listener beside a direct connection, HAProxy and PgBouncer",
		Long: `Makes a throw-away server and puts before it a listener with fixed routes in a process of its own, HAProxy and PgBouncer where they are
installed, and nothing. Then pgbench goes to each of them in turn, round by round, all on this machine: the ratios are of runs of the same
round. HAProxy and PgBouncer reach the server by TCP, as they do where it is another machine; the listener by its private socket, as it does
on the primary. Then it measures connecting, and the memory of idle sessions over backends that do nothing. Nobody published these conditions, so
there is no --preset.`,
		Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkOnly(o.Only, listenerbench.ListenerParts); err != nil {
				return err
			}
			if o.Rounds < 1 || o.Seconds < 1 {
				return fail.Usagef("--rounds and --seconds are at least 1")
			}
			b := &listenerbench.ListenerBench{O: o, Progress: c.ErrOrStderr()}
			s := b.Run(c.Context())
			return saveSamples(c, s, out, s.Print)
		},
	}
	withoutPreset(c, "nobody published these conditions")
	c.Flags().IntVar(&o.Rounds, "rounds", 5, "how often each run is repeated, in turn with the others")
	c.Flags().IntVar(&o.Seconds, "seconds", 2, "how long each run of pgbench is")
	c.Flags().IntVar(&o.Sessions, "sessions", 10_000, "idle sessions")
	c.Flags().StringSliceVar(&o.Only, "only", nil, "parts to measure: "+strings.Join(listenerbench.ListenerParts, ", ")+" (default all)")
	c.Flags().IntVar(&o.Port, "port", 28200, "first of six ports on this host")
	c.Flags().BoolVar(&o.Both, "with-goroutines", false, "measure a listener without event loops, too")
	c.Flags().BoolVar(&out.asJSON, "json", false, "print the samples instead of the figures")
	c.Flags().StringVar(&out.file, "out", "bench-listener.json", "file for the samples")
	return c
}
