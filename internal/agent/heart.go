package agent

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Beat is one frame of a stream of heartbeats: the first names the agent, the others are heartbeats, their echoes, or a farewell.
type Beat struct {
	Epoch       ag.Epoch
	Sent        time.Duration // boottime of the sender, which the echo returns
	Incarnation string        // in the first frame only
	Farewell    bool          // the agent ends in order: what follows is no evidence of its death
}

// Heart is a stream of heartbeats between two agents. Send and Receive may be called at the same time; each fails within a few
// seconds when the other side does not take part, and after Close.
type Heart interface {
	Send(b Beat) error
	Receive() (Beat, error)
	Close() error
}

// heartRetry separates two attempts to reach a voter.
const heartRetry = 100 * time.Millisecond

// silent is how long beats may stay without an echo before a stream is given up for a new one. What lies on the way may have forgotten the
// connection, and passes a new one; TCP gives it up only after ten seconds, in which answers to clients are held.
func silent(p ag.Profile) time.Duration { return max(2*time.Second, 4*p.Answer) }

// hearts sends this node's heartbeats to the voters while it holds an epoch. One goroutine per voter sends, another hears the echo.
type hearts struct {
	self        ag.ReplicaID
	incarnation string
	peers       Peers
	answers     *answers
	profile     func() ag.Profile
	log         *slog.Logger
	answered    *answered

	wanted atomic.Pointer[beating]
	moved  chan struct{} // a change of wanted, for run
}

// beating is for which epoch heartbeats are sent, and to whom. Nobody changes it.
type beating struct {
	epoch  ag.Epoch
	voters []ag.Replica
}

// want sends heartbeats of the epoch to the voters from now on; epoch 0 sends none.
func (h *hearts) want(e ag.Epoch, voters []ag.Replica) {
	old := h.wanted.Load()
	same := func(x, y ag.Replica) bool { return x.ID == y.ID && x.Endpoint == y.Endpoint }
	if old != nil && old.epoch == e && slices.EqualFunc(old.voters, voters, same) {
		return
	}
	h.wanted.Store(&beating{e, voters})
	select {
	case h.moved <- struct{}{}:
	default:
	}
}

// run keeps a stream to every wanted voter until ctx is done. Then it says farewell.
func (h *hearts) run(ctx context.Context) {
	type running struct {
		to   ag.Replica
		stop context.CancelFunc
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	live := map[ag.ReplicaID]running{}
	for {
		b := h.wanted.Load()
		want := map[ag.ReplicaID]ag.Replica{}
		if b != nil && b.epoch != 0 {
			for _, r := range b.voters {
				want[r.ID] = r
			}
		}
		for id, r := range live {
			if w, ok := want[id]; !ok || w.Endpoint != r.to.Endpoint {
				r.stop()
				delete(live, id)
			}
		}
		for id, r := range want {
			if _, ok := live[id]; !ok {
				one, stop := context.WithCancel(ctx)
				live[id] = running{r, stop}
				wg.Go(func() { h.reach(one, r) })
			}
		}
		select {
		case <-ctx.Done():
			for _, r := range live {
				r.stop()
			}
			return
		case <-h.moved:
		}
	}
}

// reach keeps one stream open until ctx is done.
func (h *hearts) reach(ctx context.Context, to ag.Replica) {
	for ctx.Err() == nil {
		dial, cancel := context.WithTimeout(ctx, 2*time.Second)
		s, err := h.peers.Heart(dial, to)
		cancel()
		if err == nil {
			h.beat(ctx, to.ID, s)
		} else if ctx.Err() == nil {
			h.log.Debug("no heartbeats to a voter", "to", to.ID, "err", err)
		}
		pause(ctx, heartRetry)
	}
}

// beat sends until the stream fails or ctx is done.
func (h *hearts) beat(ctx context.Context, to ag.ReplicaID, s Heart) {
	defer func() { _ = s.Close() }()
	if err := s.Send(Beat{Incarnation: h.incarnation}); err != nil {
		return
	}
	var newest, rtt, unanswered atomic.Int64
	ended := make(chan struct{})
	var wg sync.WaitGroup
	defer h.answered.over(to)
	defer wg.Wait()
	defer func() { _ = s.Close() }() // ends the reader
	wg.Go(func() {
		defer close(ended)
		for {
			b, err := s.Receive()
			if err != nil {
				return
			}
			if int64(b.Sent) > newest.Load() {
				h.log.Warn("a voter acknowledged what was not sent", "voter", to)
				return
			}
			unanswered.Store(0)
			rtt.Store(int64(boottime.Now() - b.Sent))
			h.answers.acknowledged(b.Epoch, to, b.Sent)
			h.answered.note(to, b.Sent)
		}
	})
	for {
		p := h.profile()
		wait := p.Beat
		if p.Name == "wan" {
			wait = min(max(wait, 4*time.Duration(rtt.Load())), p.Answer/3)
		}
		if w := h.wanted.Load(); w != nil && w.epoch != 0 {
			t0 := boottime.Now()
			newest.Store(int64(t0))
			if err := s.Send(Beat{Epoch: w.epoch, Sent: t0}); err != nil {
				return
			}
			if n := unanswered.Add(1); time.Duration(n)*wait > silent(p) { // counted, as this process may have been stopped meanwhile
				h.log.Info("a voter is silent; its stream of heartbeats is made anew", "voter", to, "beats", n)
				return
			}
		}
		t := time.NewTimer(untilBeat(wait))
		select {
		case <-ctx.Done():
			t.Stop()
			_ = s.Send(Beat{Farewell: true})
			return
		case <-ended:
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// untilBeat is how long to wait for the next instant at which beats of that interval are due. It is the same one for all voters: one
// wake-up of an idle process serves them all.
func untilBeat(every time.Duration) time.Duration { return every - boottime.Now()%every }
