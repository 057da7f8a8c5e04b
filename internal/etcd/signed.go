package etcd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
)

// Every member of the quorum can write the record, and a witness too, which may be stolen. So a replica signs the epoch
// and the state, each together with its place in the history of its key. A value of before that is put back is at
// another place, and its signature is not good there; nor is that of a change that was refused by the store. Changes
// compare the revision of the key, so that the writer knows the place.
//
// The signatures are keys of their own, written in the same transaction. They can be replaced, when the authority is,
// without the revisions that guard the lease.

// place is where a value is in the history of its key. Every write of a key adds one to its version, and a key that was
// deleted and written again was created at another revision. Two stores, as before and after a recovery, begin with the
// same revisions, so that the identity of the store is part of a place.
type place struct {
	store            uint64
	created, version int64
}

// next returns the place of the value that is written over one.
func (p place) next() place { return place{p.store, p.created, p.version + 1} }

// first returns the place of a value that creates its key in a store: its writer does not know the revision.
func first(store uint64) place { return place{store, 0, 1} }

// placeBytes is the length of a place in what is signed.
const placeBytes = 3 * 8

// of returns the signed bytes of a value at that place.
func (p place) of(value []byte) []byte {
	b := make([]byte, 0, placeBytes+len(value))
	for _, n := range []uint64{p.store, uint64(p.created), uint64(p.version)} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return append(b, value...)
}

// unplaced takes apart what of returns.
func unplaced(b []byte) (p place, value []byte, ok bool) {
	if len(b) < placeBytes {
		return place{}, nil, false
	}
	n := func(i int) uint64 { return binary.BigEndian.Uint64(b[8*i:]) }
	return place{n(0), int64(n(1)), int64(n(2))}, b[placeBytes:], true
}

// noted is the place of a value that was read, by the revision of its key.
type noted struct {
	rev int64
	place
}

// placesKept is how many places of a key are remembered. A change is guarded by one of the last revisions that were
// read.
const placesKept = 8

// part is a signed part of the record, as read.
type part struct {
	name      string
	value     kv
	key       string // of the signature
	signature kv
}

// placed returns the bytes of which the signature may be.
func (p part) placed() [][]byte {
	out := [][]byte{p.value.of(p.value.value)}
	if from := first(p.value.store); p.value.version == from.version {
		out = append(out, from.of(p.value.value))
	}
	return out
}

// parts returns the signed parts of the record that were read, and remembers their places.
func (s *Store) parts(epoch, state, signedEpoch, signedState kv) []part {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, k := range map[string]kv{s.keys.epoch: epoch, s.keys.state: state} {
		is := noted{k.rev, k.place}
		if k.rev == 0 || slices.Contains(s.places[key], is) {
			continue
		}
		// A store that was restored has used the revision before, for a value at another place.
		known := slices.DeleteFunc(s.places[key], func(n noted) bool { return n.rev == k.rev })
		s.places[key] = append(known[max(0, len(known)-placesKept+1):], is)
	}
	return []part{{"epoch", epoch, s.keys.signedEpoch, signedEpoch}, {"state", state, s.keys.signedState, signedState}}
}

// readParts reads the signed parts of the record.
func (s *Store) readParts(ctx context.Context) ([]part, error) {
	res, err := s.read(ctx, get(s.keys.epoch), get(s.keys.state), get(s.keys.signedEpoch), get(s.keys.signedState))
	if err != nil {
		return nil, err
	}
	return s.parts(res.one(0), res.one(1), res.one(2), res.one(3)), nil
}

// verify returns an error that wraps ErrForged if a part of the record is not to be used.
func (s *Store) verify(parts []part) error {
	if s.cfg.Endorser == nil {
		return nil
	}
	for _, p := range parts {
		if p.value.rev == 0 {
			continue
		}
		if err := s.cfg.Endorser.Record(p.name, p.signature.value, p.placed()...); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrForged, p.name, err)
		}
	}
	return nil
}

// whole returns an error that wraps ErrForged if a leader has the epoch, and the state is not its own. Both are written
// by one change. Each has a signature of its own, so that a thief who keeps that change from being made can write the
// epoch alone.
func (s *Store) whole(r ag.Record) error {
	if e := r.Epoch; s.cfg.Endorser != nil && e.Phase == ag.PhaseLead && r.State.Epoch != e.Epoch {
		return fmt.Errorf("%w: epoch %d is led, and the state is that of epoch %d", ErrForged, e.Epoch, r.State.Epoch)
	}
	return nil
}

// sign adds to a change the signatures of what it writes of the record.
func (s *Store) sign(ctx context.Context, w *write, guards ag.Revisions) error {
	if s.cfg.Endorser == nil {
		return nil
	}
	for _, o := range w.ops {
		p, rev := part{name: "epoch", key: s.keys.signedEpoch}, guards.Epoch
		switch {
		case o.kind == opPut && o.key == s.keys.epoch:
		case o.kind == opPut && o.key == s.keys.state:
			p, rev = part{name: "state", key: s.keys.signedState}, guards.State
		default:
			continue
		}
		at, err := s.placeOver(ctx, o.key, rev)
		if err != nil {
			return err
		}
		signature, err := s.cfg.Endorser.SignRecord(p.name, at.of(o.value))
		if err != nil {
			return err
		}
		if signature != nil {
			w.ops = append(w.ops, put(p.key, signature))
		}
	}
	return nil
}

// placeOver returns the place of a value that is written over the one at that revision of its key.
func (s *Store) placeOver(ctx context.Context, key string, rev int64) (place, error) {
	switch {
	case rev < 0:
		return place{}, errors.New("the record is changed only over a value that was read")
	case rev == 0:
		res, err := s.read(ctx, get(key))
		return first(res.store), err
	}
	for range 2 {
		s.mu.Lock()
		known, over := s.places[key], place{}
		i := slices.IndexFunc(known, func(n noted) bool { return n.rev == rev })
		if i >= 0 {
			over = known[i].next() // under the lock: parts moves them
		}
		s.mu.Unlock()
		if i >= 0 {
			return over, nil
		}
		if _, err := s.readParts(ctx); err != nil {
			return place{}, err
		}
	}
	return place{}, fmt.Errorf("%w: %s is not at revision %d any more", ErrConflict, key, rev)
}

// SignRecordAgain replaces the signatures of the record that the Endorser does not find good, while the authority is
// replaced or after an update. The values stay, with their revisions.
func (s *Store) SignRecordAgain(ctx context.Context) error {
	parts, err := s.readParts(ctx)
	if err != nil {
		return fmt.Errorf("sign the record again: %w", err)
	}
	for _, p := range parts {
		if p.value.rev == 0 || s.cfg.Endorser.Record(p.name, p.signature.value, p.placed()...) != nil {
			continue
		}
		signature := s.cfg.Endorser.SignAgain(p.name, p.signature.value, p.placed()...)
		if signature == nil {
			continue
		}
		keys := []guard{{p.value.key, p.value.rev}, {p.key, p.signature.rev}}
		if _, err := s.swap(ctx, keys, put(p.key, signature)); err != nil && !errors.Is(err, ErrConflict) {
			return fmt.Errorf("sign the record again: %w", err)
		}
	}
	return nil
}

// RestoreRecord puts back the last good value of each part of the record that is refused, if that part was written once
// since. Then no change of a replica is between the two. It reports whether it wrote.
func (s *Store) RestoreRecord(ctx context.Context) (restored bool, err error) {
	parts, err := s.readParts(ctx)
	if err != nil {
		return false, fmt.Errorf("restore the record: %w", err)
	}
	var w write
	for _, p := range parts {
		if p.value.rev == 0 {
			return false, nil
		}
		key := map[string]string{"epoch": s.keys.epoch, "state": s.keys.state}[p.name]
		w.guards = append(w.guards, guard{key, p.value.rev})
		if s.cfg.Endorser.Record(p.name, p.signature.value, p.placed()...) == nil {
			continue
		}
		was, value, ok := unplaced(s.cfg.Endorser.Good(p.name))
		if !ok || was.next() != p.value.place {
			return false, nil
		}
		signature, err := s.cfg.Endorser.SignRecord(p.name, p.value.next().of(value))
		if err != nil || signature == nil {
			return false, err
		}
		w.ops = append(w.ops, put(key, value), put(p.key, signature))
	}
	if len(w.ops) == 0 {
		return false, nil
	}
	out, err := s.change(ctx, w)
	if err != nil {
		return false, fmt.Errorf("restore the record: %w", err)
	}
	return out.made, nil
}
