package keeper

import (
	"context"
	"errors"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

var errStub = errors.New("keeper: not written yet")

// Main runs `coterie keeper --dir NODE --run RUNDIR` (args follow the word keeper) and returns the exit code.
func Main(args []string) int { return 1 }

// Spawn makes sure that a keeper serves runDir, starting `exe keeper` detached if there is none, and waits for its answer.
func Spawn(ctx context.Context, exe, nodeDir, runDir string) error { return errStub }

// MeasureFence measures how long this host takes to fence a server of so many backends.
func MeasureFence(ctx context.Context, children int) (time.Duration, error) { return 0, errStub }

// Client is the agent's connection to its keeper.
type Client struct{}

// Dial connects to the keeper's socket and says HELLO. An empty incarnation observes: it may ask Status, nothing else.
func Dial(ctx context.Context, socket, incarnation string) (*Client, State, error) {
	return nil, State{}, errStub
}

// Start starts PostgreSQL.
func (c *Client) Start(ctx context.Context, req StartRequest) (pid int, err error) { return 0, errStub }

// Arm makes the keeper fence at the deadline (BOOTTIME), and at once when this connection ends.
func (c *Client) Arm(ctx context.Context, epoch ag.Epoch, deadline time.Duration) error {
	return errStub
}

// Extend moves the deadline forward.
func (c *Client) Extend(ctx context.Context, epoch ag.Epoch, deadline time.Duration) error {
	return errStub
}

// Disarm ends the armed state; only after the server has stopped or while it is in recovery.
func (c *Client) Disarm(ctx context.Context, epoch ag.Epoch) error { return errStub }

// Fence ends the server and returns when nothing is left alive.
func (c *Client) Fence(ctx context.Context, reason string) error { return errStub }

// Stop stops the server; mode is "fast", "immediate" or "smart".
func (c *Client) Stop(ctx context.Context, mode string, budget time.Duration) (clean bool, err error) {
	return false, errStub
}

// Detach announces that this connection will end and a new one come before until.
func (c *Client) Detach(ctx context.Context, epoch ag.Epoch, until time.Duration) error {
	return errStub
}

// Status asks for the keeper's state.
func (c *Client) Status(ctx context.Context) (State, error) { return State{}, errStub }

// ClearFenced removes the record of the last fence.
func (c *Client) ClearFenced(ctx context.Context) error { return errStub }

// Shutdown ends the keeper; only with no server running.
func (c *Client) Shutdown(ctx context.Context) error { return errStub }

// Exits tells each end of a postmaster; closed when the connection ends.
func (c *Client) Exits() <-chan Exit { return nil }

// Close ends the connection. While armed and not detached, that fences.
func (c *Client) Close() error { return nil }
