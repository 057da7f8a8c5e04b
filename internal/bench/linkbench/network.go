package linkbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"

	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lib/reexec"
)

// networkName is the name under which this program runs Network.
const networkName = "bench-network"

// networkConfig is the configuration of Network: the seed of the links' randomness.
type networkConfig struct {
	Seed uint64 `json:"seed"`
}

// Network returns the name and the helper of the process that passes the packets of a network, like that of a lab. The
// process ends when its input ends.
func Network() (name string, h reexec.Helper) {
	return networkName, reexec.Typed(func(_ context.Context, c networkConfig, s reexec.Streams) error {
		signal.Ignore(os.Interrupt) // the end of the pipe is the end
		log := slog.New(slog.NewTextHandler(s.Err, nil))
		if err := linkem.Dedicate(); err != nil {
			log.Warn("links are late when processors are busy", "err", err)
		}
		n, err := startBeside(linkem.Options{Nodes: benchNodes, Seed: c.Seed, Log: log})
		if err != nil {
			return err
		}
		return errors.Join(n.Serve(pipe{s.In, s.Out}), n.Close())
	})
}

var benchNodes = []string{"n1", "n2", "n3"}

// startBeside makes a network under the first name that no other bench uses. The names are few and fixed: the next
// bench that takes a name removes what a killed bench left under it.
func startBeside(o linkem.Options) (*linkem.Network, error) {
	const most = 9
	for i := 1; ; i++ {
		o.Lab = fmt.Sprintf("bench%d", i)
		n, err := linkem.Start(o)
		if !errors.Is(err, linkem.ErrRunning) {
			return n, err
		}
		if i == most {
			return nil, fmt.Errorf("%d networks of benches run on this machine: wait for the end of one (ps -eo pid,args | grep bench-network lists them): %w", most, err)
		}
	}
}

type pipe struct {
	io.Reader
	io.Writer
}

// StartBenchNetwork starts the process of Network. stop ends it and returns its errors.
func StartBenchNetwork(seed uint64) (r *linkem.Remote, stop func() error, err error) {
	if os.Geteuid() != 0 {
		return nil, nil, linkem.ErrNotRoot
	}
	child, err := reexec.Start(context.Background(), reexec.Spec{Name: networkName, Config: networkConfig{seed}}) // the process ends with its pipe
	if err != nil {
		return nil, nil, err
	}
	stop = child.Stop
	if r, err = linkem.Connect(pipe{child.Out, child.In}); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return r, stop, nil
}
