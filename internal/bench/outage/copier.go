package outage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/spf13/cobra"
)

// BenchCopier is a relay as a process, as relays are. It prints its port, and ends with its input.
func BenchCopier() *cobra.Command {
	return &cobra.Command{
		Use: "copier TO", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, a []string) error {
			r, err := NewForwarder(a[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), r.Port())
			_, readErr := io.Copy(io.Discard, c.InOrStdin())
			return errors.Join(err, readErr, r.Close())
		},
	}
}

// copierProcess is a benchCopier that runs.
type copierProcess struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	port int
}

func StartCopier(ctx context.Context, to string) (Relay, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &copierProcess{cmd: exec.CommandContext(ctx, self, "bench", "failover", "copier", to)}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := fmt.Fscan(out, &p.port); err != nil {
		return nil, errors.Join(fmt.Errorf("the copying relay did not start: %w", err), p.Close())
	}
	return p, nil
}

func (p *copierProcess) Port() int { return p.port }

func (p *copierProcess) Close() error {
	_ = p.in.Close()
	return p.cmd.Wait()
}
