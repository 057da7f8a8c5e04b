// Package preset puts the synchronous setting of a coming epoch before a secondary's server in advance, so that its
// promotion need not wait for it.
//
// It owns which setting was put there. It must not know why an epoch is expected, nor decide what commits wait for: the
// agent passes both in. In recovery the setting has no effect. A guess that proves wrong costs nothing but its work,
// because Is compares what is in force with what is needed, and the promotion puts the right setting there otherwise.
//
// Start reading at Preset.
package preset

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fault"
)

// expectBudget bounds how long an expected setting is tried, and so how long a promotion may wait for the try's end.
const expectBudget = time.Second

// Server is the node's PostgreSQL, as far as its synchronous setting goes.
type Server struct {
	// Put puts the setting before the server, under the names of an epoch, and returns when a new session sees it.
	Put func(ctx context.Context, e ag.Epoch, s ag.Sync) error
	// InForce returns what a session of the server sees now.
	InForce func(ctx context.Context) (ag.Epoch, ag.Sync, error)
}

// Preset is the setting that was put before the server in advance, if any. Make it with New. Any goroutine may call its
// methods, but for Expect.
type Preset struct {
	server Server
	log    *slog.Logger
	turn   chan struct{} // holds one token; its holder alone puts a setting before the server, and uses put
	put    setting
	// The latest epoch for which a setting was expected: of the caller of Expect. Each is tried once.
	expected ag.Epoch
	work     sync.WaitGroup
}

type setting struct {
	epoch ag.Epoch
	sync  ag.Sync
}

// New returns a Preset that has put nothing before the server.
func New(server Server, log *slog.Logger) *Preset {
	p := &Preset{server: server, log: log, turn: make(chan struct{}, 1)}
	p.turn <- struct{}{}
	return p
}

// Put puts the setting before the server now. It waits for a try that Expect began.
func (p *Preset) Put(ctx context.Context, e ag.Epoch, s ag.Sync) error {
	select {
	case <-p.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { p.turn <- struct{}{} }()
	return p.write(ctx, e, s)
}

// Expect begins to put the setting before the server, unless that was begun for this epoch or a later one. It does not
// wait, but when it returns the turn is taken. A promotion that begins afterwards waits for the end of the try: a late
// one never reaches a server that has been promoted. While another setting is being put there it does nothing, and may
// be called again. A failure is logged and nothing else: the promotion tries again. One goroutine calls it.
func (p *Preset) Expect(e ag.Epoch, s ag.Sync) {
	if e <= p.expected {
		return
	}
	select {
	case <-p.turn:
	default:
		return
	}
	p.expected = e
	p.work.Go(func() {
		defer func() { p.turn <- struct{}{} }()
		ctx, cancel := context.WithTimeout(context.Background(), expectBudget)
		defer cancel()
		if err := p.write(ctx, e, s); err != nil {
			p.log.Info("the setting of a coming epoch is not put before the server in advance", "epoch", e, "err", err)
		}
	})
}

// write puts the setting before the server. The caller has the turn.
func (p *Preset) write(ctx context.Context, e ag.Epoch, s ag.Sync) error {
	p.put = setting{}
	if err := p.server.Put(ctx, e, s); err != nil {
		return err
	}
	fault.Point("takeover.preset") // the setting of the next epoch is before PostgreSQL; the agent does not know
	p.put = setting{e, s}
	return nil
}

// Is reports whether this setting was put before the server under the names of this epoch, and is still in force. It
// waits for a try that Expect began.
func (p *Preset) Is(ctx context.Context, e ag.Epoch, s ag.Sync) bool {
	select {
	case <-p.turn:
	case <-ctx.Done():
		return false
	}
	put := p.put
	p.turn <- struct{}{}
	if put.epoch != e || !put.sync.Same(s) {
		return false
	}
	epoch, now, err := p.server.InForce(ctx)
	return err == nil && epoch == e && now.Same(s)
}

// Wait returns when no try is under way. Nothing may be expected any more.
func (p *Preset) Wait() { p.work.Wait() }
