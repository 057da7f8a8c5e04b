package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// UpdateGroup replaces the configuration if it is still at revision rev, and returns its new revision.
func (s *Store) UpdateGroup(ctx context.Context, rev int64, g ag.Group) (int64, error) {
	return s.updateGroup(ctx, rev, g)
}

// UpdateGroupIn is UpdateGroup, if the epoch is still at revision epochRev as well: nobody else leads by then.
func (s *Store) UpdateGroupIn(ctx context.Context, rev, epochRev int64, g ag.Group) (int64, error) {
	return s.updateGroup(ctx, rev, g, guard{s.keys.epoch, epochRev})
}

func (s *Store) updateGroup(ctx context.Context, rev int64, g ag.Group, beside ...guard) (int64, error) {
	b, err := s.encodeGroup(g)
	if err != nil {
		return 0, fmt.Errorf("change the configuration: %w", err)
	}
	if rev <= 0 {
		return 0, errors.New("change the configuration: no revision to guard it")
	}
	newRev, err := s.swap(ctx, append(beside, guard{s.keys.config, rev}), put(s.keys.config, b))
	if err != nil {
		return 0, fmt.Errorf("change the configuration: %w", err)
	}
	s.wroteGroup(b, newRev)
	return newRev, nil
}

// RestoreGroup replaces the value of the configuration by another that was in its place before, if it is still there.
func (s *Store) RestoreGroup(ctx context.Context, value, by []byte) error {
	res, err := s.read(ctx, get(s.keys.config))
	if err != nil {
		return fmt.Errorf("restore the configuration: %w", err)
	}
	now := res.one(0)
	if !bytes.Equal(now.value, value) || len(by) > maxConfigBytes {
		return nil
	}
	if _, err := s.swap(ctx, []guard{{s.keys.config, now.rev}}, put(s.keys.config, by)); err != nil && !errors.Is(err, ErrConflict) {
		return fmt.Errorf("restore the configuration: %w", err)
	}
	return nil
}

// encodeGroup returns the value of a configuration, signed.
func (s *Store) encodeGroup(g ag.Group) ([]byte, error) {
	if err := checkGroup(g, s.cfg.Group); err != nil {
		return nil, err
	}
	if s.cfg.Endorser == nil {
		return encode(g, maxConfigBytes)
	}
	b, err := s.cfg.Endorser.Sign(g)
	if err == nil && len(b) > maxConfigBytes {
		err = fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(b), maxConfigBytes)
	}
	return b, err
}

// wroteGroup is called with a value of encodeGroup that was written, and its revision.
func (s *Store) wroteGroup(b []byte, rev int64) {
	if s.cfg.Endorser != nil {
		s.cfg.Endorser.Wrote(b, rev)
	}
}

// reading returns what a read about to begin does with the value of the configuration: it replaces it by the one that
// is to be used.
func (s *Store) reading() func(kv) kv {
	if s.cfg.Endorser == nil {
		return func(k kv) kv { return k }
	}
	use := s.cfg.Endorser.Reading()
	return func(k kv) kv {
		k.value = use(k.value, k.rev)
		return k
	}
}

// PutOp writes the operator's request if it is at revision rev (0: absent, -1: not compared) and the epoch is at
// epochRev (-1: not compared). It returns the request's new revision.
func (s *Store) PutOp(ctx context.Context, rev, epochRev int64, request json.RawMessage) (int64, error) {
	var err error
	if s.cfg.Endorser != nil {
		request, err = s.cfg.Endorser.SignRequest(request)
	}
	if err == nil {
		err = raw(request, maxOpBytes)
	}
	if err != nil {
		return 0, fmt.Errorf("write the operator's request: %w", err)
	}
	newRev, err := s.swap(ctx, s.opGuards(rev, epochRev), put(s.keys.op, request))
	if err != nil {
		return 0, fmt.Errorf("write the operator's request: %w", err)
	}
	return newRev, nil
}

// request returns the operator's request that was read in that epoch, if it is to be carried out. If not, stale is as
// Endorser.Request has it.
func (s *Store) request(op kv, epoch ag.Epoch) (use json.RawMessage, stale bool, err error) {
	if op.rev == 0 {
		return nil, false, nil
	}
	if s.cfg.Endorser != nil {
		op.value, stale = s.cfg.Endorser.Request(op.value, op.rev, epoch)
		if op.value == nil {
			return nil, stale, nil
		}
	}
	use, err = readRaw(op, maxOpBytes)
	return use, false, err
}

// DeleteOp removes the operator's request, guarded as PutOp.
func (s *Store) DeleteOp(ctx context.Context, rev, epochRev int64) error {
	if _, err := s.swap(ctx, s.opGuards(rev, epochRev), del(s.keys.op)); err != nil {
		return fmt.Errorf("close the operator's request: %w", err)
	}
	return nil
}

func (s *Store) opGuards(rev, epochRev int64) []guard {
	var g []guard
	if rev >= 0 {
		g = append(g, guard{s.keys.op, rev})
	}
	if epochRev >= 0 {
		g = append(g, guard{s.keys.epoch, epochRev})
	}
	return g
}

// swap makes a change of one operation and returns the revision that made it.
func (s *Store) swap(ctx context.Context, guards []guard, o op) (int64, error) {
	out, err := s.change(ctx, write{guards: guards, ops: []op{o}})
	if err != nil {
		return 0, err
	}
	if !out.made {
		return 0, ErrConflict
	}
	return out.rev, nil
}

// PutStatus publishes a replica's status report. It is not guarded: reports are for people and for hints, and a delayed
// one may briefly replace a newer one.
func (s *Store) PutStatus(ctx context.Context, id ag.ReplicaID, status json.RawMessage) error {
	if err := errors.Join(checkID(id, false), raw(status, maxStatusBytes)); err != nil {
		return fmt.Errorf("publish the status: %w", err)
	}
	if err := s.blind(ctx, put(s.keys.status+string(id), status)); err != nil {
		return fmt.Errorf("publish the status: %w", err)
	}
	return nil
}

// DeleteStrays removes the status reports and the votes in all other names than those of the members: of a member that
// has left, and whatever a stolen witness wrote in invented names. A read finds a limited number of each.
func (s *Store) DeleteStrays(ctx context.Context, members []ag.ReplicaID) error {
	for _, id := range members {
		if err := checkID(id, false); err != nil {
			return fmt.Errorf("remove reports of members that have left: %w", err)
		}
	}
	for _, prefix := range []string{s.keys.status, s.keys.vote} {
		if err := s.blind(ctx, others(prefix, members)...); err != nil {
			return fmt.Errorf("remove reports of members that have left: %w", err)
		}
	}
	return nil
}

// others returns the operations that delete every key below prefix but those with these names.
func others(prefix string, names []ag.ReplicaID) (ops []op) {
	from := prefix
	for _, name := range slices.Sorted(slices.Values(names)) {
		ops = append(ops, delRange(from, prefix+string(name)))
		from = prefix + string(name) + "\x00"
	}
	return append(ops, delRange(from, string(prefixEnd(prefix))))
}

// blind makes an unguarded change.
func (s *Store) blind(ctx context.Context, ops ...op) error {
	ctx, cancel := s.bounded(ctx, s.cfg.CallTimeout)
	defer cancel()
	_, _, err := ask(ctx, s, func(ctx context.Context, endpoint string) (txnResult, error) {
		return s.back.txn(ctx, endpoint, txn{Then: ops})
	})
	return err
}

// PutToken stores a new join token. It also removes tokens that expired a day ago or more, and those that are not
// genuine. nil: all are.
func (s *Store) PutToken(ctx context.Context, t Token, genuine func(Token) bool) error {
	if !namePattern.MatchString(t.ID) {
		return errors.New("store the join token: its id must be 1 to 64 letters, digits, dots, dashes or underscores")
	}
	b, err := encode(t, maxTokenBytes)
	if err != nil {
		return fmt.Errorf("store the join token: %w", err)
	}
	if err := s.pruneTokens(ctx, genuine); err != nil {
		return fmt.Errorf("store the join token: %w", err)
	}
	key := s.keys.token + t.ID
	if _, err := s.swap(ctx, []guard{{key, 0}}, put(key, b)); err != nil {
		return fmt.Errorf("store the join token: %w", err)
	}
	return nil
}

func (s *Store) pruneTokens(ctx context.Context, genuine func(Token) bool) error {
	res, err := s.read(ctx, list(s.keys.token, maxTokens+1))
	if err != nil {
		return err
	}
	kept := 0
	for _, k := range res.reads[0] {
		var t Token
		err := decode(k, maxTokenBytes, &t)
		if err == nil && s.cfg.Now().Before(t.Expires.Add(24*time.Hour)) && (genuine == nil || genuine(t)) {
			kept++
			continue
		}
		if _, err := s.swap(ctx, []guard{{k.key, k.rev}}, del(k.key)); err != nil && !errors.Is(err, ErrConflict) {
			return err
		}
	}
	if kept >= maxTokens {
		return fmt.Errorf("there are %d join tokens that are younger than a day; wait until some have expired", kept)
	}
	return nil
}

// Token returns a join token that can still be used: ErrTokenUnknown, ErrTokenUsed or ErrTokenExpired otherwise (the
// last two with the token).
func (s *Store) Token(ctx context.Context, id string) (Token, error) {
	t, _, err := s.token(ctx, id)
	if err != nil {
		return t, fmt.Errorf("join token: %w", err)
	}
	return t, nil
}

func (s *Store) token(ctx context.Context, id string) (Token, int64, error) {
	if !namePattern.MatchString(id) {
		return Token{}, 0, ErrTokenUnknown
	}
	res, err := s.read(ctx, get(s.keys.token+id))
	if err != nil {
		return Token{}, 0, err
	}
	k := res.one(0)
	if k.rev == 0 {
		return Token{}, 0, ErrTokenUnknown
	}
	var t Token
	if err := decode(k, maxTokenBytes, &t); err != nil {
		return Token{}, 0, err
	}
	switch {
	case t.ID != id:
		return Token{}, 0, fmt.Errorf("%w: %s: of another token", ErrCorrupt, k.key)
	case t.Used:
		return t, k.rev, ErrTokenUsed
	case !s.cfg.Now().Before(t.Expires):
		return t, k.rev, ErrTokenExpired
	}
	return t, k.rev, nil
}

// ConsumeToken marks a join token as used and returns it. Of all calls for one token at most one succeeds.
func (s *Store) ConsumeToken(ctx context.Context, id string) (Token, error) {
	t, rev, err := s.token(ctx, id)
	if err != nil {
		return t, fmt.Errorf("use the join token: %w", err)
	}
	t.Used = true
	b, err := encode(t, maxTokenBytes)
	if err != nil {
		return Token{}, fmt.Errorf("use the join token: %w", err)
	}
	key := s.keys.token + id
	_, err = s.swap(ctx, []guard{{key, rev}}, put(key, b))
	if errors.Is(err, ErrConflict) {
		return t, fmt.Errorf("use the join token: %w", ErrTokenUsed) // a token is changed only once
	}
	if err != nil {
		return Token{}, fmt.Errorf("use the join token: %w", err)
	}
	return t, nil
}
