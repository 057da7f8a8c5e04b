package listenerbench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/coteriedb/coterie/internal/measure/method"
)

// CostOptions say how the cost of continuity is measured.
type CostOptions struct {
	Rounds   int
	Seconds  int    // of each run of pgbench
	Sessions int    // idle sessions whose memory is measured, beside as many others
	Port     int    // first of eight ports on this host
	With     string // a program of another commit; "": none
}

// Cost is what continuity costs while nothing fails.
type Cost struct {
	Rounds   int                  `json:"rounds"`
	Seconds  int                  `json:"seconds"`
	With     string               `json:"with,omitempty"` // the other program, and its version
	TPS      map[string][]float64 `json:"tps"`            // transactions per second by arm, round by round
	CPU      map[string][]float64 `json:"cpu"`            // processor time of the listener and the kernel's workers, in seconds per 100,000 transactions
	Sessions int                  `json:"sessions"`
	Idle     map[string]float64   `json:"idle"` // bytes in use for each idle session, by arm
}

// Arms of the cost: how the client reaches the primary, and what CONTINUITY is.
const (
	ownOff     = "own, OFF"
	ownOn      = "own, SESSION"
	ownWith    = "own, other program"
	relayedOff = "relayed, OFF"
	relayedOn  = "relayed, SESSION"
	relayedAll = "relayed, REPLAY"
)

// costArm is a listener that takes turns with others.
type costArm struct {
	name string
	node listenerNode
	exe  string
}

func costArms(with string) []costArm {
	arms := []costArm{
		{name: ownOff},
		{name: ownOn, node: listenerNode{Continuity: true}},
		{name: relayedOff, node: listenerNode{Relayed: true}},
		{name: relayedOn, node: listenerNode{Relayed: true, Continuity: true}},
		{name: relayedAll, node: listenerNode{Relayed: true, Continuity: true, Replay: true}},
	}
	if with != "" {
		arms = append(arms, costArm{name: ownWith, node: listenerNode{Continuity: true}, exe: with})
	}
	return arms
}

// MeasureCost puts listeners with each value of CONTINUITY before one throw-away server, and runs prepared TPC-B of 8
// clients through each in turn. Then it measures the memory of idle sessions whose state is known. say gets a line for
// each round.
func MeasureCost(ctx context.Context, o CostOptions, say func(format string, a ...any)) (_ *Cost, err error) {
	arms := costArms(o.With)
	ports := map[string]int{wayDirect: o.Port}
	for i, a := range arms {
		ports[a.name] = o.Port + 1 + i
	}
	bed, err := newServerBed(ctx, ports)
	if err != nil {
		return nil, err
	}
	defer bed.close()
	c := &Cost{Rounds: o.Rounds, Seconds: o.Seconds, TPS: map[string][]float64{}, CPU: map[string][]float64{}, Idle: map[string]float64{}}
	if o.With != "" {
		c.With = o.With + ", " + bed.version(o.With, "--version")
	}
	for _, a := range arms {
		m, err := bed.startCostArm(bed.life, a, bed.socket())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.name, err)
		}
		defer func() { err = errors.Join(err, m.Stop()) }()
		bed.proxies[a.name] = m.Pid()
	}
	work := listenerWork{name: "tpcb", args: []string{"-M", "prepared", "-c", "8", "-j", "2"}}
	for round, order := range method.Blocks(1, len(arms), o.Rounds) {
		for _, i := range order {
			r, err := bed.measure(ctx, work, arms[i].name, o.Seconds)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", arms[i].name, err)
			}
			c.TPS[arms[i].name] = append(c.TPS[arms[i].name], r.TPS)
			c.CPU[arms[i].name] = append(c.CPU[arms[i].name], r.CPU+r.Workers)
		}
		say("cost, round %d of %d: own %.0f → %.0f, relayed %.0f → %.0f, with REPLAY %.0f", round+1, o.Rounds, last(c.TPS[ownOff]), last(c.TPS[ownOn]),
			last(c.TPS[relayedOff]), last(c.TPS[relayedOn]), last(c.TPS[relayedAll]))
	}
	return c, bed.idleBytes(ctx, o, c)
}

func last(v []float64) float64 { return v[len(v)-1] }

func (l *listenerBed) startCostArm(ctx context.Context, a costArm, socket string) (*measuredListener, error) {
	n := a.node
	n.Listen, n.Socket, n.DSN = "127.0.0.1:"+strconv.Itoa(l.ports[a.name]), socket, l.server.DSN()
	n.Cert, n.Key = filepath.Join(l.dir, "cert.pem"), filepath.Join(l.dir, "key.pem")
	return startListener(ctx, a.exe, n)
}

// Slower compares prepared TPC-B where continuity is on with that where it is off: for clients of the primary's own
// listener, for those of another node's, and for the latter with REPLAY; and, where it is on, with the other program. A
// comparison without blocks was not measured.
func (c *Cost) Slower() (own, relayed, replay, with method.Comparison) {
	compare := func(a, b string) method.Comparison { return method.Compare(c.TPS[a], c.TPS[b], method.HigherIsBetter) }
	own, relayed, replay = compare(ownOff, ownOn), compare(relayedOff, relayedOn), compare(relayedOff, relayedAll)
	if len(c.TPS[ownWith]) > 0 {
		with = compare(ownWith, ownOn)
	}
	return own, relayed, replay, with
}

// IdleBytes returns how many bytes more each idle session takes where continuity is on, the larger of both paths.
func (c *Cost) IdleBytes() float64 {
	return max(c.Idle[ownOn]-c.Idle[ownOff], c.Idle[relayedAll]-c.Idle[relayedOff])
}

// askedWithin bounds the wait until every idle session was asked for its state: some are asked each second.
const askedWithin = 5 * time.Minute

// idleBytes measures the memory of idle sessions, over backends that answer only the listener's question. Sessions is
// set once every arm is measured.
func (l *listenerBed) idleBytes(ctx context.Context, o CostOptions, c *Cost) error {
	for _, a := range []costArm{{name: ownOff}, {name: ownOn}, {name: relayedOff}, {name: relayedAll}} {
		for _, known := range costArms("") {
			if known.name == a.name {
				a.node = known.node
			}
		}
		bytes, err := l.idleOf(ctx, o, a)
		if err != nil {
			return fmt.Errorf("idle sessions, %s: %w", a.name, err)
		}
		c.Idle[a.name] = bytes
	}
	c.Sessions = o.Sessions
	return nil
}

func (l *listenerBed) idleOf(ctx context.Context, o CostOptions, a costArm) (_ float64, err error) {
	dir, err := os.MkdirTemp("/tmp", "cbs")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	stub, err := serveStub(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer stub.close()
	stub.answers = &recorded{server: l.socket()}
	a.name = "idle"
	l.ports[a.name] = l.ports[wayDirect] + len(l.ports)
	defer delete(l.ports, a.name)
	m, err := l.startCostArm(ctx, a, filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.Stop()) }()
	var clients []net.Conn
	defer func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}()
	var heaps [2]uint64 // with half of the sessions and with all: the first sessions of a process take what is not theirs
	for i := range heaps {
		more, err := openIdle(ctx, o.Sessions, "127.0.0.1:"+strconv.Itoa(l.ports[a.name]), false)
		if clients = append(clients, more...); err != nil {
			return 0, err
		}
		if a.node.Continuity {
			if err := stub.answers.await(ctx, len(clients)); err != nil {
				return 0, err
			}
		}
		time.Sleep(time.Second)
		if heaps[i], err = m.heap(); err != nil {
			return 0, err
		}
	}
	return (float64(heaps[1]) - float64(heaps[0])) / float64(o.Sessions), nil
}

// await waits until that many requests were answered.
func (r *recorded) await(ctx context.Context, n int) error {
	for began := time.Now(); r.count() < n; {
		if time.Since(began) > askedWithin {
			return fmt.Errorf("%d of %d sessions were asked for their state", r.count(), n)
		}
		if !method.Pause(ctx, 100*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	return nil
}
