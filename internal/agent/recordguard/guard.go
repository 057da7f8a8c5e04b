package recordguard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// ErrUntrusted means that the quorum's store has gone back in time: it was restored from a backup, made anew, or
// recovered by force. Its statement of which member holds which commits is no longer true, so no promotion may rest on
// it (docs/internals/safety.md, "Untrusted store").
var ErrUntrusted = errors.New("the quorum's store is older than what this node has seen")

// Guard remembers the latest record seen, in memory at once and on disk within a moment (Keep). A failover does not
// wait for the disk: a crash in between loses one step of many, and every other member has seen that step too. But
// nobody is followed before the disk has who leads (Pin). Make it with New. All methods may be called from any
// goroutine.
type Guard struct {
	writing sync.Mutex // held while the disk gets what was seen; taken before mu

	mu    sync.Mutex // guards seen, saved and peers
	seen  marks.Seen
	saved marks.Seen // as it is on disk
	peers map[ag.ReplicaID]*peer

	changed chan struct{} // seen is to be written to disk
}

// peer is what another member reports to have seen: the latest, and what it reported before that. The reports of each
// member are kept apart, so that they are forgotten when that member is removed: it may have been stolen.
type peer struct {
	reports [2]peerSeen
	leads   marks.Seen // its last report, for the leader that it names
	replica bool       // it holds data
}

// peerSeen is what another member has seen of the record by a point in time.
type peerSeen struct {
	mark marks.Seen    // without the revision
	at   time.Duration // boottime
}

// later returns the latest epoch that the peer, a replica, has seen in that store; 0: none.
func (p *peer) later(store uint64) ag.Epoch {
	if now := p.reports[0].mark; p.replica && now.Store == store {
		return now.Epoch
	}
	return 0
}

// New returns a guard that has seen a record.
func New(seen marks.Seen) *Guard {
	return &Guard{seen: seen, saved: seen, peers: map[ag.ReplicaID]*peer{}, changed: make(chan struct{}, 1)}
}

// Hear records what another member has seen, and reports whether it is a replica that has seen a later epoch than this
// node. A member that was away cannot know that the store has gone back to the record that it remembers; the members
// that stayed tell it.
func (g *Guard) Hear(from ag.Replica, s marks.Seen) (later bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.peers[from.ID]
	if p == nil {
		p = &peer{}
		g.peers[from.ID] = p
	}
	p.replica = from.HasData()
	if h := p.reports[0].mark; h.OlderThan(s) {
		latest := marks.Seen{Epoch: max(h.Epoch, s.Epoch), Seq: max(h.Seq, s.Seq), Store: s.Store}
		p.reports[0], p.reports[1] = peerSeen{latest, boottime.Now()}, p.reports[0]
	}
	p.leads = s
	return p.later(g.seen.Store) > g.seen.Epoch
}

// Among forgets what was heard of all that are not members.
func (g *Guard) Among(members []ag.Replica) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id := range g.peers {
		if !slices.ContainsFunc(members, func(r ag.Replica) bool { return r.ID == id }) {
			delete(g.peers, id)
		}
	}
}

// HeardEpoch returns the latest epoch that another replica reports to have seen in this store; 0: none was heard of. A
// witness's word does not count: a stolen one would end every leadership by it.
func (g *Guard) HeardEpoch() (latest ag.Epoch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.peers {
		latest = max(latest, p.later(g.seen.Store))
	}
	return latest
}

// HeardLeader returns the replica other than self that leads an epoch of this store by another replica's word; "": none
// was heard of. A store that keeps its promises has one leader in an epoch.
func (g *Guard) HeardLeader(e ag.Epoch, self ag.ReplicaID) ag.ReplicaID {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.peers {
		if s := p.leads; p.replica && s.Store == g.seen.Store && s.Epoch == e && s.Leader != "" && s.Leader != self {
			return s.Leader
		}
	}
	return ""
}

// HeardRival returns an error if by another replica's word the group has a second store, in which a replica leads this
// epoch or a later one; nil: none was heard of. The error wraps ErrUntrusted. A recovery enters an epoch above all that
// the members knew. So an earlier one in another store is the memory of a quorum that was lost, and two stores of one
// epoch were founded beside each other. Each may have acknowledged what the other does not have: of
// one epoch neither goes on, until an operator decides.
func (g *Guard) HeardRival() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rival(g.seen)
}

// rivalError is an ErrUntrusted of a store that has not gone back: the group has two.
type rivalError struct {
	leader ag.ReplicaID
	epoch  ag.Epoch
}

// Error implements error.
func (e rivalError) Error() string {
	return fmt.Sprintf("%s leads epoch %d in another quorum of the group, which was founded beside this one: stop both, and run coterie recover with the accounts of both", e.leader, e.epoch)
}

// Is implements the interface of errors.Is.
func (rivalError) Is(target error) bool { return target == ErrUntrusted }

func (g *Guard) rival(now marks.Seen) error {
	for _, p := range g.peers {
		if s := p.leads; p.replica && now.Store != 0 && s.Store != 0 && s.Store != now.Store && s.Epoch >= now.Epoch && s.Leader != "" {
			return rivalError{s.Leader, s.Epoch}
		}
	}
	return nil
}

// secondLeaderError is an ErrUntrusted of a store that tells another story of an epoch than it told this node before.
// Commits that the first leader acknowledged may be on this copy, and the second one lacks them.
type secondLeaderError struct {
	epoch  ag.Epoch
	was    ag.ReplicaID
	leader ag.ReplicaID // "": none is chosen any more
}

// Error implements error.
func (e secondLeaderError) Error() string {
	now := "none"
	if e.leader != "" {
		now = string(e.leader)
	}
	return fmt.Sprintf("the quorum's store tells of two leaders of epoch %d: of %s before, and of %s now: each may have acknowledged what the other lacks; run coterie recover with the accounts of all members, or have this node join anew if nothing of its copy is needed", e.epoch, e.was, now)
}

// Is implements the interface of errors.Is.
func (secondLeaderError) Is(target error) bool { return target == ErrUntrusted }

// oneLeader refuses a record that tells of another leader of an epoch than the one before. history has the leaders of
// earlier epochs, as far as versions that write them led. Nobody but the replica that is chosen in an epoch comes to
// lead it. So one that was pinned counts as its leader: the disk may not have got more than that before a crash.
func oneLeader(was, now marks.Seen, history []ag.TimelineEntry) error {
	if was.Chosen != "" && now.Epoch == was.Epoch && now.Chosen != was.Chosen {
		return secondLeaderError{was.Epoch, was.Chosen, now.Chosen}
	}
	if was.Led != 0 && now.Led == was.Led && now.By != was.By { // also where it is not told any more: a leader that is forgotten is not compared
		return secondLeaderError{was.Led, was.By, now.By}
	}
	told := append([]ag.TimelineEntry{{Epoch: now.Led, Leader: now.By}}, history...)
	for _, t := range told {
		if t.Epoch == 0 || t.Leader == "" {
			continue
		}
		if was.Led == t.Epoch && was.By != t.Leader {
			return secondLeaderError{was.Led, was.By, t.Leader}
		}
		if was.Chosen != "" && was.Epoch == t.Epoch && was.Chosen != t.Leader {
			return secondLeaderError{was.Epoch, was.Chosen, t.Leader}
		}
	}
	return nil
}

// CheckMonotonic refuses a record that is older than one seen before, or contradicts it, with an error that wraps
// ErrUntrusted. history is that of the record's state. asked is the boottime at which the record was requested. Reports
// of other members of that moment or before it count as well, because a store that keeps its promises returns
// everything that any member has read. A record of another store is refused too.
//
// One caller at a time may read a record and have it checked. Of two reads under way at once, the later one might end
// first.
func (g *Guard) CheckMonotonic(now marks.Seen, history []ag.TimelineEntry, asked time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.seen
	switch {
	case now.OlderThan(was):
		return fmt.Errorf("%w: it holds epoch %d with state %d, and epoch %d with state %d was seen", ErrUntrusted, now.Epoch, now.Seq, was.Epoch, was.Seq)
	case was.Store != 0 && now.Store != was.Store:
		return fmt.Errorf("%w: it is store %x, and the record was in store %x", ErrUntrusted, now.Store, was.Store)
	case now.Rev < was.Rev:
		return fmt.Errorf("%w: it is at revision %d, and revision %d was seen", ErrUntrusted, now.Rev, was.Rev)
	}
	if err := errors.Join(g.rival(now), oneLeader(was, now, history)); err != nil {
		return err
	}
	for id, p := range g.peers {
		for _, h := range p.reports {
			if now.OlderThan(h.mark) && asked >= h.at {
				return fmt.Errorf("%w: it holds epoch %d with state %d, and %s has seen epoch %d with state %d", ErrUntrusted, now.Epoch, now.Seq, id, h.mark.Epoch, h.mark.Seq)
			}
		}
	}
	g.seen = now
	was.Rev = now.Rev // the revision moves all the time; it alone is not worth a write
	if now != was {
		select {
		case g.changed <- struct{}{}:
		default:
		}
	}
	return nil
}

// Remember replaces the latest record seen by what the node's disk holds. The agent calls it once, before it reads a
// record.
func (g *Guard) Remember(s marks.Seen) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen, g.saved = s, s
}

// Latest returns the latest record seen.
func (g *Guard) Latest() marks.Seen {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen
}

// keepAgain is the pause before a save that failed is tried again.
const keepAgain = 5 * time.Second

// Keep saves the latest record seen whenever it changes, until ctx is done, and then once more. A save that failed is
// tried again: while nothing more happens, a crash would have this node forget what it saw last.
func (g *Guard) Keep(ctx context.Context, save func(marks.Seen) error, log *slog.Logger) {
	var again <-chan time.Time
	for {
		ended := false
		select {
		case <-g.changed:
		case <-again:
		case <-ctx.Done():
			ended = true
		}
		again = nil
		if err := g.persist(save); err != nil {
			log.Warn("the record seen was not remembered", "err", err)
			again = time.After(keepAgain)
		}
		if ended {
			return
		}
	}
}

func (g *Guard) persist(save func(marks.Seen) error) error {
	g.writing.Lock()
	defer g.writing.Unlock()
	g.mu.Lock()
	now, saved := g.seen, g.saved
	g.mu.Unlock()
	if now == saved {
		return nil
	}
	if err := save(now); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.saved = now
	return nil
}

// Pin returns nil once the disk has that this replica leads the epoch, so that this node follows no other leader of it,
// not even after a crash. As a rule the disk has it since the replica was chosen, before it was promoted. While none is
// chosen there is nothing to keep.
func (g *Guard) Pin(e ag.Epoch, leader ag.ReplicaID, save func(marks.Seen) error) error {
	g.mu.Lock()
	now, saved := g.seen, g.saved
	g.mu.Unlock()
	switch {
	case now.Epoch != e:
		return fmt.Errorf("the record is of epoch %d by now, and not of epoch %d", now.Epoch, e)
	case now.Chosen == "": // a candidate fetches what it lacks
		return nil
	case now.Chosen != leader:
		return secondLeaderError{e, now.Chosen, leader}
	case saved.Epoch == e && saved.Chosen == leader:
		return nil
	}
	return g.persist(save)
}
