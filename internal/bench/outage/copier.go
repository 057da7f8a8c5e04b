package outage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/coteriedb/coterie/internal/lib/reexec"
)

// copierName is the helper that RunCopier is.
const copierName = "bench-copier"

// copierConfig has the address of TCP, or the path of a Unix socket, to which the relay copies.
type copierConfig struct {
	To string `json:"to"`
}

// Copier returns the name and the helper of a relay that is a process of its own, as real relays are. It prints its port, and ends with its
// input.
func Copier() (name string, h reexec.Helper) {
	return copierName, reexec.Typed(func(_ context.Context, c copierConfig, s reexec.Streams) error {
		r, err := NewForwarder(c.To)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(s.Out, r.Port())
		_, readErr := io.Copy(io.Discard, s.In)
		return errors.Join(err, readErr, r.Close())
	})
}

// copierProcess is a Copier that runs.
type copierProcess struct {
	*reexec.Process
	port int
}

// StartCopier starts a Copier to an address or a socket.
func StartCopier(ctx context.Context, to string) (Relay, error) {
	helper, err := reexec.Start(ctx, reexec.Spec{Name: copierName, Config: copierConfig{to}}, reexec.Stderr(os.Stderr))
	if err != nil {
		return nil, err
	}
	p := &copierProcess{Process: helper}
	if _, err := fmt.Fscan(p.Out, &p.port); err != nil {
		return nil, errors.Join(fmt.Errorf("the copying relay did not start: %w", err), p.Close())
	}
	return p, nil
}

func (p *copierProcess) Port() int { return p.port }

func (p *copierProcess) Close() error { return p.Stop() }
