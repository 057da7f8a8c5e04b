package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"
)

// A change whose answer is lost has an unknown outcome. Worse, it may still be under way and be applied later. So every
// change carries an attempt id and is guarded by the revision of the replica's attempt key, which it also overwrites.
// Hence
//
//   - the same transaction may be sent again, to any endpoint: at most one of the copies is applied, and each answer
//     shows whether one was;
//   - overwriting the attempt key with another value voids every copy that is still under way, so that "not made" also
//     holds for the future.

// attempts is the state of a Store's attempt key.
type attempts struct {
	turn chan struct{} // holds one token while a change is being made
	rev  int64         // the attempt key's revision as last seen
	seq  uint64        // numbers the attempts of this incarnation
}

// write is a change: guards, the operations that make it, and the keys whose values the answer must carry.
type write struct {
	guards []guard
	ops    []op
	reads  []op
}

// outcome is the result of a change. If made, rev is the revision that made it. late means that the reads were made
// later than the change, because its own answer was lost.
type outcome struct {
	made  bool
	rev   int64
	late  bool
	reads txnResult // without the attempt key
}

// adoptions is how often one change may start over because its attempt key was not at the expected revision. The first
// time is for a new Store of a known replica, the second for a change of its own that was applied late.
const adoptions = 4

// change applies w. It returns true if w was applied, false if a guard failed, or an error. An error other than
// ErrUnknown means that the change was not made and will not be.
func (s *Store) change(ctx context.Context, w write) (outcome, error) {
	ctx, cancel := s.bounded(ctx, s.cfg.CallTimeout)
	defer cancel()
	select {
	case s.attempts.turn <- struct{}{}:
		defer func() { <-s.attempts.turn }()
	case <-ctx.Done():
		return outcome{}, fmt.Errorf("%w: an earlier change is still under way", ErrNoQuorum)
	}
	s.attempts.seq++
	id := fmt.Sprintf("%s/%d/%s", s.cfg.Attempt, s.attempts.seq, rand.Text())
	for range adoptions {
		out, again, err := s.attempt(ctx, id, w)
		if !again {
			return out, err
		}
	}
	return outcome{}, fmt.Errorf("%w: another process writes as replica %q", ErrNoQuorum, s.cfg.Replica)
}

// attempt sends w to the endpoints until one answers. again requests another attempt with the attempt key's revision
// that was found.
func (s *Store) attempt(ctx context.Context, id string, w write) (out outcome, again bool, err error) {
	expected := s.attempts.rev
	key := s.keys.attempt
	t := txn{
		If:   append([]guard{{key, expected}}, w.guards...),
		Then: append(append([]op{put(key, []byte(id))}, w.ops...), w.reads...),
		Else: append([]op{get(key)}, w.reads...),
	}
	res, maySent, err := s.send(ctx, t)
	if err != nil {
		if !maySent {
			return outcome{}, false, err
		}
		out, err := s.readBack(ctx, id, expected, w, err)
		return out, false, err
	}
	if res.ok {
		s.attempts.rev = res.rev
		return outcome{made: true, rev: res.rev, reads: res}, false, nil
	}
	found := res.one(0)
	s.attempts.rev = found.rev
	res.reads = res.reads[1:]
	switch {
	case string(found.value) == id: // an earlier copy of this very transaction
		return outcome{made: true, rev: found.rev, late: true, reads: res}, false, nil
	case found.rev != expected:
		return outcome{}, true, nil
	case maySent:
		// A copy that is still under way would be applied if its guards came true again, as "the key is absent" can.
		if out, err := s.readBack(ctx, id, expected, w, ErrConflict); out.made || !errors.Is(err, ErrConflict) || errors.Is(err, ErrUnknown) {
			return out, false, err
		}
	}
	return outcome{reads: res}, false, nil
}

// send runs a change's transaction in most of the remaining time, and leaves the rest for reading back.
func (s *Store) send(ctx context.Context, t txn) (res txnResult, maySent bool, err error) {
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, time.Until(deadline)*7/10)
	defer cancel()
	return ask(ctx, s, func(ctx context.Context, endpoint string) (txnResult, error) { return s.back.txn(ctx, endpoint, t) })
}

// readBack determines the outcome of a change that got no answer, and voids the copies that are still under way.
func (s *Store) readBack(ctx context.Context, id string, expected int64, w write, cause error) (outcome, error) {
	unknown := func(why error) error { return fmt.Errorf("%w: %w", ErrUnknown, why) }
	if ctx.Err() != nil {
		return outcome{}, unknown(cause)
	}
	key := s.keys.attempt
	void := "void " + id
	res, _, err := ask(ctx, s, func(ctx context.Context, endpoint string) (txnResult, error) {
		return s.back.txn(ctx, endpoint, txn{
			If:   []guard{{key, expected}},
			Then: []op{put(key, []byte(void))},
			Else: append([]op{get(key)}, w.reads...),
		})
	})
	if err != nil {
		return outcome{}, unknown(errors.Join(cause, err))
	}
	if res.ok {
		s.attempts.rev = res.rev
		return outcome{}, fmt.Errorf("the change was not made: %w", cause)
	}
	found := res.one(0)
	s.attempts.rev = found.rev
	res.reads = res.reads[1:]
	switch string(found.value) {
	case id:
		return outcome{made: true, rev: found.rev, late: true, reads: res}, nil
	case void: // this very read-back, whose own answer was lost
		return outcome{}, fmt.Errorf("the change was not made: %w", cause)
	}
	return outcome{}, unknown(fmt.Errorf("another process writes as replica %q: %w", s.cfg.Replica, cause))
}
