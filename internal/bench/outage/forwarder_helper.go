package outage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/coteriedb/coterie/internal/lib/reexec"
)

// forwarderName is the name under which this program runs ForwarderHelper.
const forwarderName = "bench-copier"

// forwarderConfig has the TCP address, or the path of the Unix socket, to which the process copies.
type forwarderConfig struct {
	To string `json:"to"`
}

// ForwarderHelper returns the name and the helper of a Forwarder in a process of its own, as real relays have. The
// process prints its port and ends when its input ends.
func ForwarderHelper() (name string, h reexec.Helper) {
	return forwarderName, reexec.Typed(func(_ context.Context, c forwarderConfig, s reexec.Streams) error {
		r, err := NewForwarder(c.To)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(s.Out, r.Port())
		_, readErr := io.Copy(io.Discard, s.In)
		return errors.Join(err, readErr, r.Close())
	})
}

// forwarderProcess is a running ForwarderHelper.
type forwarderProcess struct {
	*reexec.Process
	port int
}

// StartForwarder starts a ForwarderHelper process that copies to a TCP address or to the path of a Unix socket. Close
// stops it.
func StartForwarder(ctx context.Context, to string) (Relay, error) {
	helper, err := reexec.Start(ctx, reexec.Spec{Name: forwarderName, Config: forwarderConfig{to}}, reexec.Stderr(os.Stderr))
	if err != nil {
		return nil, err
	}
	p := &forwarderProcess{Process: helper}
	if _, err := fmt.Fscan(p.Out, &p.port); err != nil {
		return nil, errors.Join(fmt.Errorf("the copying relay did not start: %w", err), p.Close())
	}
	return p, nil
}

func (p *forwarderProcess) Port() int { return p.port }

func (p *forwarderProcess) Close() error { return p.Stop() }
