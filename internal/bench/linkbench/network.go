package linkbench

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/lab/linkem"
)

// BenchLinkemNetwork is the process that passes the packets, as a lab has it.
func BenchLinkemNetwork() *cobra.Command {
	var seed uint64
	c := &cobra.Command{
		Use: "network", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			signal.Ignore(os.Interrupt) // the end of the pipe is the end
			log := slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
			if err := linkem.Dedicate(); err != nil {
				log.Warn("links are late when processors are busy", "err", err)
			}
			n, err := startBeside(linkem.Options{Nodes: benchNodes, Seed: seed, Log: log})
			if err != nil {
				return err
			}
			return errors.Join(n.Serve(pipe{c.InOrStdin(), c.OutOrStdout()}), n.Close())
		},
	}
	c.Flags().Uint64Var(&seed, "seed", 1, "of the links' randomness")
	return c
}

var benchNodes = []string{"n1", "n2", "n3"}

// startBeside makes a network under the first name that no other bench's has. The names are few and fixed, so that what a killed one left
// is removed by the next that takes its name.
func startBeside(o linkem.Options) (*linkem.Network, error) {
	const most = 9
	for i := 1; ; i++ {
		o.Lab = fmt.Sprintf("bench%d", i)
		n, err := linkem.Start(o)
		if !errors.Is(err, linkem.ErrRunning) {
			return n, err
		}
		if i == most {
			return nil, fmt.Errorf("%d networks of benches run on this machine: wait for the end of one (ps -eo pid,args | grep 'bench linkem network' lists them): %w", most, err)
		}
	}
}

type pipe struct {
	io.Reader
	io.Writer
}

// StartBenchNetwork starts that process; stop ends it and returns what went wrong in it.
func StartBenchNetwork(seed uint64) (r *linkem.Remote, stop func() error, err error) {
	if os.Geteuid() != 0 {
		return nil, nil, linkem.ErrNotRoot
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	var said strings.Builder
	child := exec.Command(self, "bench", "linkem", "network", "--seed", strconv.FormatUint(seed, 10)) //nolint:noctx // ends with its pipe
	child.Stderr = &said
	in, err := child.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := child.Start(); err != nil {
		return nil, nil, err
	}
	stop = func() error {
		err := errors.Join(in.Close(), child.Wait())
		if err != nil {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
		}
		return err
	}
	if r, err = linkem.Connect(pipe{out, in}); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return r, stop, nil
}
