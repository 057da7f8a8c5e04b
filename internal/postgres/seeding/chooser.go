package seeding

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// chooser picks the codec of the next chunk. With a codec set by hand it is that one. AUTO tries each candidate for a
// while and keeps the one with the highest rate of file bytes, which is the rate that the operator waits for. It so
// takes the link, the CPU of both sides and the data into account without a model of any. The trial is repeated, since
// links, data and the limit change. No codec brings more than the limit allows, so the first that brings nearly as much
// is kept: it is the cheapest.
type chooser struct {
	limit func() int64 // bytes of files per second; 0: none

	mu    sync.Mutex
	auto  bool
	tried int64 // the limit when the trials began
	now   wire.Codec
	why   string
	trial int // candidate under trial; len(candidates): none
	rates []float64
	began time.Time
	bytes int64 // of files, that came in this round
	wire  int64 // and their size on the wire
	warm  int   // answers that came so far

	learned string // the codec that the next attempt may begin with, if this one is interrupted; "": not known
	shrinks bool   // by the first candidate, so much that none is not tried
	round   int    // counts the changes of codec: answers are asked for long before they come
	under   int    // questions under way of this round
	older   int    // and of rounds before
}

// candidates are tried in this order. The first two show the limit. If the tighter one is faster, the limit is the
// link, and one tighter still is tried. Else the limit is the processors, and no codec is tried. That trial is left out
// if the data shrink so well that sending them unpacked costs more than packing them, on any machine.
var candidates = []wire.Codec{{Kind: wire.CodecMinLZ}, {Kind: wire.CodecZstd, Level: 1}, {Kind: wire.CodecZstd, Level: 2}, {Kind: wire.CodecNone, Level: 0}}

const (
	trialBytes = 32 << 20               // of files, at least, per candidate: the rate of a few hundredths of a second is chance
	trialTime  = 400 * time.Millisecond // and at most this long, once something came
	steadyMin  = 512 << 20              // bytes between trials
	steadyTime = 20 * time.Second       // and at least this long
	warmUp     = 16                     // answers from connections that have to find the link's speed first
	shrinksBy  = 4                      // and more: not sent as they are
	nearLimit  = 0.8                    // and more of what may come: no other codec brings more
)

func newChooser(option string, limit func() int64) (*chooser, error) {
	c, auto, err := wire.ParseCompression(option)
	if err != nil {
		return nil, err
	}
	ch := &chooser{limit: limit, auto: auto, now: c}
	if auto {
		ch.begin()
	} else {
		ch.why = "set to " + c.String()
	}
	return ch, nil
}

func (c *chooser) begin() {
	c.trial, c.rates, c.tried = 0, make([]float64, len(candidates)), c.limit()
	c.use(candidates[0])
}

// resume begins with the codec that an interrupted attempt has learned. A new trial would cost a slow link as much as
// some hundred MB of files. Later trials take place as usual. A codec that was learned without a limit is not used
// under one.
func (c *chooser) resume(learned string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(candidates, func(k wire.Codec) bool { return k.String() == learned })
	if i < 0 || !c.auto || c.tried > 0 {
		return
	}
	c.learned, c.trial = learned, len(candidates)
	c.use(candidates[i])
	c.why = "AUTO: " + learned + ", which was best before the interruption"
}

// lesson returns the codec for the next attempt's resume; "": none.
func (c *chooser) lesson() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.learned
}

// use changes the codec of what is asked from now on. c.mu is held, or c is not shared yet.
func (c *chooser) use(k wire.Codec) {
	c.now, c.began, c.bytes, c.wire = k, time.Time{}, 0, 0
	c.round++
	c.older, c.under = c.older+c.under, 0
}

// current returns the codec in use.
func (c *chooser) current() wire.Codec {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// pick returns the codec for the next chunk, and the round of its answer.
func (c *chooser) pick() (wire.Codec, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.under++
	return c.now, c.round
}

// over records that a question of that round has been answered, or never will be.
func (c *chooser) over(round int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if round == c.round {
		c.under--
	} else {
		c.older--
	}
}

// choice returns the codec in use and the reason.
func (c *chooser) choice() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.auto && c.why == "" {
		return "AUTO: " + c.now.String() + ", not compared with others yet"
	}
	return c.why
}

// shown is what Progress says of the codec: choice, and whether it compresses.
func (c *chooser) shown() (use string, packed bool) {
	return c.choice(), c.current().Kind != wire.CodecNone
}

// arrived records n bytes of files that arrived as wire bytes, for a question of that round. It reports whether another
// codec was learned.
func (c *chooser) arrived(n, sent, round int, now time.Time) (learned bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.learned
	c.count(n, sent, round, now)
	return c.learned != was
}

// count is arrived; c.mu is held.
func (c *chooser) count(n, sent, round int, now time.Time) {
	if c.warm++; !c.auto || round != c.round || c.warm <= warmUp {
		return
	}
	if c.began.IsZero() { // the clock starts once nothing of an earlier codec is on its way any more
		if c.older == 0 {
			c.began, c.bytes = now, 0
		}
		return
	}
	c.bytes, c.wire = c.bytes+int64(n), c.wire+int64(sent)
	took := now.Sub(c.began)
	if c.trial == len(candidates) {
		if c.bytes >= steadyMin && took >= steadyTime || c.limit() != c.tried {
			c.begin()
		}
		return
	}
	if c.bytes < trialBytes && took < trialTime || c.bytes < 4*wire.ChunkSize {
		return
	}
	c.rates[c.trial] = float64(c.bytes) / max(took.Seconds(), 1e-3)
	if c.trial == 0 {
		c.shrinks = c.bytes > shrinksBy*c.wire
	}
	if c.tried == 0 && c.trial > 0 { // the first alone says nothing
		c.learned = candidates[c.best()].String()
	}
	if c.trial = c.following(); c.trial < len(candidates) {
		c.use(candidates[c.trial])
		return
	}
	c.settle()
}

// following returns the candidate to try after the present one.
func (c *chooser) following() int {
	linkBound, limit := c.rates[1] > c.rates[0], float64(c.limit())
	switch {
	case limit > 0 && c.rates[c.trial] >= nearLimit*limit:
		return len(candidates)
	case c.trial == 0, c.trial == 1 && linkBound:
		return c.trial + 1
	case c.trial == 1 && !c.shrinks:
		return 3
	}
	return len(candidates)
}

// best returns the first of the candidates tried so far that no other clearly beats.
func (c *chooser) best() (best int) {
	for i, r := range c.rates {
		if r > 1.03*c.rates[best] {
			best = i
		}
	}
	return best
}

func (c *chooser) settle() {
	c.use(candidates[c.best()])
	c.why = "AUTO: " + c.now.String()
	for i, r := range c.rates {
		if r > 0 {
			c.why += fmt.Sprintf(", %s %.0f MB/s", candidates[i], r/1e6)
		}
	}
}
