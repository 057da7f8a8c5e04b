package link

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/codec"
)

const (
	flagHedge = 1

	redialFirst = 20 * time.Millisecond
	redialMost  = 500 * time.Millisecond
	retryUDP    = time.Minute
)

// live maintains the legs of a link until the link is over; d is nil on the side that accepted it.
func (c *Conn) live(d *Dialer) {
	due := time.NewTimer(boottime.UntilNext(c.cfg.Heartbeat))
	defer due.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var dial dialing
	for {
		select {
		case <-c.over:
			cancel()
			_ = dial.wait() // the leg is of no use now
			return
		case <-c.kick:
		case <-c.owed.C:
			c.makeUp()
			continue
		case <-due.C:
			due.Reset(boottime.UntilNext(c.cfg.Heartbeat))
			c.beat()
		}
		c.expire(d)
		if d != nil && !c.isOver() {
			c.steer(ctx, d, &dial)
		}
	}
}

// beat pings every leg, closes silent ones, and evaluates what was measured.
func (c *Conn) beat() {
	now := boottime.Awake()
	c.mu.Lock()
	legs := slices.Clone(c.legs)
	c.mu.Unlock()
	var sent, lost uint64
	for _, l := range legs {
		if quiet := l.silent(now); quiet > c.cfg.DeadAfter {
			c.log.Info("a leg is silent", "leg", l.String(), "silent", quiet)
			l.shut()
			continue
		}
		l.ping()
		if trip := l.trip(); trip >= farTrip || trip > 0 && trip <= nearTrip {
			l.suit(trip >= farTrip)
		}
		s, x := l.count()
		sent, lost = sent+s, lost+x
	}
	c.mu.Lock()
	c.loss.add(sent, lost)
	trip := c.trip()
	watch := c.loss.watch(trip >= farTrip, sent, c.hedging)
	c.measureRate(now)
	setting := codec.Choose(c.cfg.Compression(), c.known, c.setting, codec.Path{RTT: trip, Rate: 8 * c.cfg.Bandwidth.Rate(c.peer)})
	if setting != c.setting && c.cause == nil {
		c.note("codec changed", fmt.Sprintf("%s to %s: round trip %.3g ms", c.setting, setting, float64(trip.Microseconds())/1000))
		c.setting = setting
	}
	c.mu.Unlock()
	legs = slices.DeleteFunc(legs, func(l *leg) bool { return l.packet == nil })
	if watch > 0 && len(legs) > 0 {
		c.wg.Go(func() { c.look(legs, watch) })
	}
	c.acknowledge()
	c.rescue(now)
}

// look sends pings spread over half a heartbeat. Pings sent at once would travel in one packet.
func (c *Conn) look(legs []*leg, pings int) {
	t := time.NewTicker(c.cfg.Heartbeat / time.Duration(2*pings))
	defer t.Stop()
	for i := range pings {
		select {
		case <-t.C:
			legs[i%len(legs)].ping()
		case <-c.over:
			return
		}
	}
}

// measureRate records what the link has carried since the last heartbeat if it was full all that time; mu is held.
func (c *Conn) measureRate(now time.Duration) {
	if took := now - c.beaten; c.beaten > 0 && took > 0 && c.busy.least >= bulkQueue {
		c.cfg.Bandwidth.note(c.peer, float64(c.busy.delivered)/took.Seconds())
	}
	c.beaten, c.busy = now, busy{least: c.under}
}

// trip returns the round trip of the link, the shortest of its legs; mu is held.
func (c *Conn) trip() time.Duration {
	var best time.Duration
	for _, l := range c.legs {
		if t := l.trip(); t > 0 && (best == 0 || t < best) {
			best = t
		}
	}
	if best == 0 {
		return c.lastTrip
	}
	c.lastTrip = best
	return best
}

// rescue makes another leg the main one when that is stuck, and sends its frames again.
func (c *Conn) rescue(now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.unacked) == 0 || len(c.legs) < 2 || c.cause != nil {
		return
	}
	stuck := c.unacked[0].leg
	if stuck == nil || now-c.unacked[0].sent < 2*c.cfg.Heartbeat+4*c.trip() || stuck.silent(now) < 2*c.cfg.Heartbeat {
		return
	}
	for _, l := range c.legs {
		if l != stuck && l.silent(now) < 2*c.cfg.Heartbeat {
			c.main = l
			c.note("main leg changed", fmt.Sprintf("%s: %s is stuck", l, stuck))
			c.again(stuck)
			return
		}
	}
}

// again sends by the main leg the frames that were sent on the lost leg or on none; mu is held.
func (c *Conn) again(gone *leg) {
	c.resent += uint64(c.send(func(f *frame) bool { return f.leg == gone || f.leg == nil }))
}

// send sends by the main leg, if there is one, those unacknowledged frames that which selects. It returns their bytes;
// mu is held.
func (c *Conn) send(which func(*frame) bool) (n int) {
	main := c.main
	var list []*frame
	for _, f := range c.unacked {
		if which(f) {
			if f.put(main); main != nil && c.cause == nil {
				f.hold()
				n += len(f.buf)
				list = append(list, f)
			}
		}
	}
	if len(list) == 0 {
		return 0
	}
	c.wg.Go(func() {
		for _, f := range list {
			if err := main.send(f); err != nil {
				main.broken(err)
			}
			f.release()
		}
	})
	return n
}

// expire ends an accepted link that has been without a leg for too long.
func (c *Conn) expire(d *Dialer) {
	c.mu.Lock()
	since, trip := c.legless, c.trip()
	c.mu.Unlock()
	if d == nil && since != 0 && boottime.Awake()-since > c.cfg.Grace+8*trip {
		c.end(ErrNoLeg, "")
	}
}

// dialing is the attempt to open another leg; at most one is under way.
type dialing struct {
	done chan error // nil: none
	kind string
}

func (g *dialing) wait() error {
	if g.done == nil {
		return nil
	}
	return <-g.done
}

// steer makes the legs what the chooser decides; on the dialling side only.
func (c *Conn) steer(ctx context.Context, d *Dialer, dial *dialing) {
	if dial.done != nil {
		select {
		case err := <-dial.done:
			c.dialled(d, dial.kind, err)
			dial.done = nil
		default:
		}
	}
	c.mu.Lock()
	legless := len(c.legs) == 0
	c.mu.Unlock()
	if legless {
		c.revive(ctx, d)
		return
	}
	if dial.done == nil && c.suspicious() {
		c.extend(ctx, d, dial, TCP, true) // by a relay, if the direct path is dead
		return
	}
	want := c.decide(d)
	c.mu.Lock()
	missing, extra, main := c.compare(want)
	change := main != nil && (c.main != main || c.hedging != want.Hedge)
	if change && c.main != main {
		c.note("main leg changed", fmt.Sprintf("%s: %s", main, want.Reason))
	}
	if main != nil {
		c.main, c.hedging = main, want.Hedge
	}
	c.mu.Unlock()
	if main != nil {
		flags := byte(0)
		if want.Hedge {
			flags |= flagHedge
		}
		main.control(append(header{kind: typeMain, length: 1, ack: c.next.Load()}.append(nil), flags))
	}
	if extra != nil {
		c.wg.Go(extra.shut)
	}
	if missing != "" && dial.done == nil {
		c.extend(ctx, d, dial, missing, false)
	}
}

// extend begins to open another leg.
func (c *Conn) extend(ctx context.Context, d *Dialer, dial *dialing, kind string, main bool) {
	done := make(chan error, 1)
	dial.done, dial.kind = done, kind
	c.wg.Go(func() {
		done <- c.add(ctx, d, kind, main)
		select {
		case c.kick <- struct{}{}:
		default:
		}
	})
}

// suspicious reports whether all legs have been silent for long enough to open another one.
func (c *Conn) suspicious() bool {
	now := boottime.Awake()
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.ContainsFunc(c.legs, func(l *leg) bool { return l.silent(now) <= c.cfg.Suspect })
}

// replaceSilent gives up the legs that have been silent for long, except the new one; mu is held. No new frame is put
// on them, and the frames under way on them go by the new leg once their readers have ended.
func (c *Conn) replaceSilent(by *leg) {
	now := boottime.Awake()
	c.legs = slices.DeleteFunc(c.legs, func(l *leg) bool {
		quiet := l.silent(now)
		if l == by || quiet <= c.cfg.Suspect {
			return false
		}
		c.note("leg given up", fmt.Sprintf("%s: silent for %v", l, quiet.Round(time.Millisecond)))
		c.wg.Go(l.cut)
		return true
	})
}

// decide returns the chooser's decision for what is measured now.
func (c *Conn) decide(d *Dialer) choice {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	m := measure{trip: c.trip()}
	m.sent, m.lost = c.loss.sum()
	if time.Since(d.udpDead) < retryUDP {
		m.udp = udpBlocked
	}
	for _, l := range c.legs {
		if l.Kind() == QUIC {
			m.udp = udpWorks
		} else {
			m.congestion = l.Congestion()
		}
	}
	d.choose.prefer = d.prefer()
	want := d.choose.next(boottime.Awake(), m)
	if !want.same(c.chosen) {
		c.note("transport chosen", fmt.Sprintf("%s, legs %v, small frames twice: %t; %s", want.Main, want.Legs, want.Hedge, want.Reason))
	}
	c.chosen = want
	return want
}

// compare returns a kind of leg that is missing, a leg that is superfluous, and the leg that should be the main one; mu
// is held.
func (c *Conn) compare(want choice) (missing string, extra, main *leg) {
	free := slices.Clone(c.legs)
	for _, kind := range want.Legs {
		i := slices.IndexFunc(free, func(l *leg) bool { return l.Kind() == kind })
		if i < 0 {
			missing = kind
			continue
		}
		if kind == want.Main && main == nil {
			main = free[i]
		}
		free = slices.Delete(free, i, i+1)
	}
	if len(free) > 0 && missing == "" && free[0] != c.main && boottime.Awake()-free[0].since > 3*c.cfg.Heartbeat {
		extra = free[0] // only once everything else matches
	}
	return missing, extra, main
}

// revive opens a leg after the last one was lost, for as long as the other side keeps the link.
func (c *Conn) revive(ctx context.Context, d *Dialer) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.wg.Go(func() {
		select {
		case <-c.over:
			cancel()
		case <-ctx.Done():
		}
	})
	c.mu.Lock()
	began := c.legless
	c.mu.Unlock()
	wait := redialFirst
	for {
		dctx, stop := context.WithTimeout(ctx, c.cfg.DeadAfter)
		t, err := d.first(dctx)
		if err == nil {
			err = d.join(dctx, c, t, false, true)
		}
		stop()
		var refused *RefusedError
		switch {
		case err == nil:
			return
		case ctx.Err() != nil:
			return
		case errors.As(err, &refused) || d.final(err) || boottime.Awake()-began > c.cfg.Grace:
			c.end(fmt.Errorf("%w: %w", ErrNoLeg, err), "")
			return
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, redialMost)
		case <-ctx.Done():
			return
		}
	}
}

// add opens one more leg.
func (c *Conn) add(ctx context.Context, d *Dialer, kind string, main bool) error {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	t, err := d.Open(ctx, kind)
	if err != nil {
		return err
	}
	return d.join(ctx, c, t, false, main)
}

// dialled records the result of an attempt to open another leg.
func (c *Conn) dialled(d *Dialer, kind string, err error) {
	if err == nil {
		return
	}
	c.log.Debug("no further leg", "kind", kind, "err", err)
	if kind == QUIC {
		d.mu.Lock()
		d.udpDead = time.Now()
		d.mu.Unlock()
	}
}

// follow makes the leg the main one, as the dialling side decided.
func (c *Conn) follow(l *leg, hedge bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.legs, l) {
		return
	}
	if c.main != l || c.hedging != hedge {
		c.note("main leg changed", fmt.Sprintf("%s, small frames twice: %t, as the other side chose", l, hedge))
	}
	c.main, c.hedging = l, hedge
}

// tasks counts the goroutines of a link. Unlike a sync.WaitGroup it may grow while Wait is under way: a link can be
// closed while its legs still end.
type tasks struct {
	mu   sync.Mutex
	done sync.Cond // of mu
	n    int
}

// Go runs f in a goroutine that Wait waits for.
func (w *tasks) Go(f func()) {
	w.mu.Lock()
	w.n++
	w.mu.Unlock()
	go func() {
		defer func() {
			w.mu.Lock()
			w.n--
			w.done.Broadcast()
			w.mu.Unlock()
		}()
		f()
	}()
}

// Wait returns when no goroutine runs.
func (w *tasks) Wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.n > 0 {
		w.done.Wait()
	}
}
