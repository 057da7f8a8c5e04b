package etcd

import (
	"context"
	"errors"
	"fmt"

	"github.com/coteriedb/coterie/internal/ag"
)

// Read returns everything that the group's members act on, as of one revision, by one linearizable transaction. It
// fails with ErrNoRecord when the group does not exist in this store, and with ErrCorrupt when it exists in part.
func (s *Store) Read(ctx context.Context) (Snapshot, error) {
	use := s.reading()
	res, err := s.read(ctx, get(s.keys.epoch), get(s.keys.state), get(s.keys.lead), get(s.keys.config), get(s.keys.op),
		list(s.keys.status, maxStatuses), list(s.keys.vote, maxReplicas), get(s.keys.signedEpoch), get(s.keys.signedState))
	if err != nil {
		return Snapshot{}, fmt.Errorf("read the record: %w", err)
	}
	epoch, state, config, op := res.one(0), res.one(1), res.one(3), res.one(4)
	if epoch.rev == 0 && state.rev == 0 && config.rev == 0 {
		return Snapshot{}, fmt.Errorf("group %s: %w", s.cfg.Group, ErrNoRecord)
	}
	if epoch.rev == 0 || state.rev == 0 || config.rev == 0 {
		return Snapshot{}, fmt.Errorf("%w: group %s: epoch at revision %d, state at %d, config at %d; all must exist",
			ErrCorrupt, s.cfg.Group, epoch.rev, state.rev, config.rev)
	}
	config = use(config)
	if err := s.verify(s.parts(epoch, state, res.one(7), res.one(8))); err != nil {
		return Snapshot{}, err
	}
	snap := Snapshot{GroupRev: config.rev, OpRev: op.rev, Store: res.store, StoreRev: res.rev, From: res.from}
	if snap.Record, err = decodeRecord(epoch, state, res.one(2)); err == nil {
		err = s.whole(snap.Record)
	}
	if err != nil {
		return Snapshot{}, err
	}
	if err := decode(config, maxConfigBytes, &snap.Group); err != nil {
		return Snapshot{}, err
	}
	if err := checkGroup(snap.Group, s.cfg.Group); err != nil {
		return Snapshot{}, fmt.Errorf("%w: %s: %w", ErrCorrupt, config.key, err)
	}
	if snap.Op, snap.OpStale, err = s.request(op, snap.Record.Epoch.Epoch); err != nil {
		return Snapshot{}, err
	}
	var bad, badVotes []error
	snap.Statuses, bad = decodeStatuses(s.keys.status, res.reads[5])
	snap.Record.Votes, badVotes = decodeVotes(s.keys.vote, res.reads[6])
	if bad = append(bad, badVotes...); len(bad) > 0 {
		s.log.Warn("unreadable reports or votes", "error", errors.Join(bad...))
	}
	return snap, nil
}

// Commit changes the record if it is still at the guard's revisions: 0 means that the key must be absent, -1 that it is
// not compared. The epoch is always compared, and the configuration where c says so. It returns the record as its own
// transaction left it, which is all that a takeover may act on (docs/internals/safety.md, "Takeover").
//
// ErrConflict comes with the record as it is now. Any other error except ErrUnknown means that the change was not made
// and will not be; ErrUnknown means that this could not be found out in time.
func (s *Store) Commit(ctx context.Context, guards ag.Revisions, c Change) (ag.Record, error) {
	w, err := s.recordWrite(guards, c)
	if err == nil {
		err = s.sign(ctx, &w, guards)
	}
	if err != nil {
		return ag.Record{}, fmt.Errorf("change the record: %w", err)
	}
	out, err := s.change(ctx, w)
	if err != nil {
		return ag.Record{}, fmt.Errorf("change the record: %w", err)
	}
	rec, err := decodeRecord(out.reads.one(0), out.reads.one(1), out.reads.one(2))
	if err != nil {
		return ag.Record{}, fmt.Errorf("change the record (made: %t): %w", out.made, err)
	}
	if !out.made {
		return rec, fmt.Errorf("change the record: %w: guarded by revisions %+v, found %+v", ErrConflict, guards, rec.Revs)
	}
	epochRev := guards.Epoch
	if c.Epoch != nil {
		epochRev = out.rev
	}
	if rec.Revs.Epoch != epochRev {
		return rec, fmt.Errorf("change the record: %w: the change was made, then overtaken by epoch %d of %s",
			ErrConflict, rec.Epoch.Epoch, rec.Epoch.Leader)
	}
	return rec, nil
}

func (s *Store) recordWrite(g ag.Revisions, c Change) (write, error) {
	if g.Epoch < 0 {
		return write{}, errors.New("every change is guarded by the revision of the epoch")
	}
	w := write{
		guards: []guard{{s.keys.epoch, g.Epoch}},
		reads:  []op{get(s.keys.epoch), get(s.keys.state), get(s.keys.lead)},
	}
	if g.State >= 0 {
		w.guards = append(w.guards, guard{s.keys.state, g.State})
	}
	if g.Lead >= 0 {
		w.guards = append(w.guards, guard{s.keys.lead, g.Lead})
	}
	if c.Group > 0 {
		w.guards = append(w.guards, guard{s.keys.config, c.Group})
	}
	add := func(key string, v any, invalid error) error {
		if invalid != nil {
			return invalid
		}
		b, err := encode(v, maxRecordBytes)
		w.ops = append(w.ops, put(key, b))
		return err
	}
	var err error
	if c.Epoch != nil {
		err = errors.Join(err, add(s.keys.epoch, c.Epoch, checkEpoch(*c.Epoch)))
	}
	if c.State != nil {
		err = errors.Join(err, add(s.keys.state, c.State, checkState(*c.State)))
	}
	if c.Lead != nil {
		err = errors.Join(err, add(s.keys.lead, c.Lead, checkLead(*c.Lead)))
	}
	for _, v := range c.Votes {
		err = errors.Join(err, checkID(v.Member, false))
		w.guards = append(w.guards, guard{s.keys.vote + string(v.Member), v.Rev})
	}
	if v := c.Vote; v != nil {
		err = errors.Join(err, add(s.keys.vote+string(v.Member), v, checkVote(*v)))
	}
	if c.Unvote != "" {
		err = errors.Join(err, checkID(c.Unvote, false))
		w.ops = append(w.ops, del(s.keys.vote+string(c.Unvote)))
	}
	if err == nil && len(w.ops) == 0 {
		err = errors.New("nothing to change")
	}
	return w, err
}

// renewal is the state of a Store's renewals.
type renewal struct {
	turn chan struct{} // holds one token while a renewal is being made
	rev  int64         // the lead key's revision as last seen
	last ag.Lead       // its value at that revision
}

// found records a value that another writer wrote. An unreadable value is not a release, and is overwritten.
func (r *renewal) found(lead kv) {
	r.rev, r.last = lead.rev, ag.Lead{}
	if lead.rev != 0 && decode(lead, maxRecordBytes, &r.last) != nil {
		r.last = ag.Lead{}
	}
}

// overRelease reports whether lead would revoke its holder's own release. Other members may already act on the release.
func (r *renewal) overRelease(lead ag.Lead) bool {
	return r.last.Released && !lead.Released && r.last.Epoch == lead.Epoch && r.last.Holder == lead.Holder
}

// renewals bounds how often one renewal starts over because /lead was not at the expected revision.
const renewals = 4

// Renew writes /lead if /epoch is still at epochRev, and returns the revision of /lead. Success means that a
// transaction sent after the call began was applied: a caller that took its clock before the call may count its lease
// from there.
//
// It does not wait for changes under way. It compares /lead with the last revision it saw, so that a renewal whose
// answer was lost can never be applied after a later one. A released lease must not come back, nor may a late copy of a
// release end a lease in force. A renewal that meets the release of its epoch by its own holder fails with ErrConflict:
// a release is final.
func (s *Store) Renew(ctx context.Context, epochRev int64, lead ag.Lead) (int64, error) {
	b, err := encode(lead, maxRecordBytes)
	if err = errors.Join(checkLead(lead), err); err != nil {
		return 0, fmt.Errorf("renew the lease: %w", err)
	}
	if epochRev <= 0 {
		return 0, errors.New("renew the lease: no revision of the epoch to guard it")
	}
	ctx, cancel := s.bounded(ctx, s.cfg.CallTimeout)
	defer cancel()
	select {
	case s.renewal.turn <- struct{}{}:
		defer func() { <-s.renewal.turn }()
	case <-ctx.Done():
		return 0, fmt.Errorf("renew the lease: %w: an earlier renewal is still under way", ErrNoQuorum)
	}
	for range renewals {
		if s.renewal.overRelease(lead) {
			return 0, fmt.Errorf("renew the lease: %w: %s released epoch %d", ErrConflict, lead.Holder, lead.Epoch)
		}
		t := txn{
			If:   []guard{{s.keys.epoch, epochRev}, {s.keys.lead, s.renewal.rev}},
			Then: []op{put(s.keys.lead, b)},
			Else: []op{get(s.keys.epoch), get(s.keys.lead)},
		}
		res, _, err := ask(ctx, s, func(ctx context.Context, endpoint string) (txnResult, error) { return s.back.txn(ctx, endpoint, t) })
		if err != nil {
			return 0, fmt.Errorf("renew the lease: %w", err)
		}
		if res.ok {
			s.renewal.rev, s.renewal.last = res.rev, lead
			return res.rev, nil
		}
		if found := res.one(0).rev; found != epochRev {
			return 0, fmt.Errorf("renew the lease: %w: the epoch is at revision %d, not %d", ErrConflict, found, epochRev)
		}
		s.renewal.found(res.one(1))
	}
	return 0, fmt.Errorf("renew the lease: %w: /lead keeps changing", ErrConflict)
}

// Replace overwrites a group's configuration and record after the loss of its quorum. It fails with ErrConflict if the
// store already holds an epoch as late as e. Calling it again after it was made changes nothing.
func (s *Store) Replace(ctx context.Context, g ag.Group, e ag.EpochRecord, st ag.State) error {
	config, err1 := s.encodeGroup(g)
	epoch, err2 := encode(e, maxRecordBytes)
	state, err3 := encode(st, maxRecordBytes)
	if err := errors.Join(checkEpoch(e), checkState(st), err1, err2, err3); err != nil {
		return fmt.Errorf("replace the group's record: %w", err)
	}
	res, err := s.read(ctx, get(s.keys.epoch), get(s.keys.state), get(s.keys.lead), get(s.keys.config), get(s.keys.signedEpoch), get(s.keys.signedState))
	if err != nil {
		return fmt.Errorf("replace the group's record: %w", err)
	}
	found, old := res.one(0), ag.EpochRecord{}
	forged := s.verify(s.parts(found, res.one(1), res.one(4), res.one(5))) != nil // then it says nothing
	if found.rev != 0 && !forged {
		if err := decode(found, maxRecordBytes, &old); err != nil {
			return fmt.Errorf("replace the group's record: %w", err)
		}
	}
	if old.Epoch == e.Epoch && old.Leader == e.Leader {
		return nil
	}
	if old.Epoch >= e.Epoch {
		return fmt.Errorf("replace the group's record: %w: the store holds epoch %d of %s", ErrConflict, old.Epoch, old.Leader)
	}
	w := write{
		guards: []guard{{s.keys.epoch, found.rev}, {s.keys.state, res.one(1).rev}, {s.keys.lead, res.one(2).rev}, {s.keys.config, res.one(3).rev}},
		ops:    []op{put(s.keys.config, config), put(s.keys.epoch, epoch), put(s.keys.state, state), del(s.keys.lead), del(s.keys.op)},
	}
	if err := s.sign(ctx, &w, ag.Revisions{Epoch: found.rev, State: res.one(1).rev}); err != nil {
		return fmt.Errorf("replace the group's record: %w", err)
	}
	out, err := s.change(ctx, w)
	if err == nil && !out.made {
		err = fmt.Errorf("%w: somebody else writes as group %s", ErrConflict, s.cfg.Group)
	}
	if err != nil {
		return fmt.Errorf("replace the group's record: %w", err)
	}
	s.wroteGroup(config, out.rev)
	return nil
}

// Pass writes configuration, epoch and state in one transaction, if none of them, nor the heartbeat, has changed since
// from was read. The heartbeat and the operator's request, which are about the epoch before, are removed. It fails with
// ErrConflict if something has changed, and with ErrUnknown if the outcome could not be found out in time.
func (s *Store) Pass(ctx context.Context, from Snapshot, g ag.Group, e ag.EpochRecord, st ag.State) error {
	config, err1 := s.encodeGroup(g)
	epoch, err2 := encode(e, maxRecordBytes)
	state, err3 := encode(st, maxRecordBytes)
	err := errors.Join(checkEpoch(e), checkState(st), err1, err2, err3)
	revs := from.Record.Revs
	if err == nil && (revs.Epoch == 0 || revs.State == 0 || from.GroupRev == 0 || e.Epoch != from.Record.Epoch.Epoch+1) {
		err = errors.New("it does not follow what was read")
	}
	if err != nil {
		return fmt.Errorf("pass to another cluster: %w", err)
	}
	w := write{
		guards: []guard{{s.keys.epoch, revs.Epoch}, {s.keys.state, revs.State}, {s.keys.lead, revs.Lead}, {s.keys.config, from.GroupRev}},
		ops:    []op{put(s.keys.config, config), put(s.keys.epoch, epoch), put(s.keys.state, state), del(s.keys.lead), del(s.keys.op)},
	}
	if err := s.sign(ctx, &w, revs); err != nil {
		return fmt.Errorf("pass to another cluster: %w", err)
	}
	out, err := s.change(ctx, w)
	if err == nil && !out.made {
		err = fmt.Errorf("%w: the record has changed", ErrConflict)
	}
	if err != nil {
		return fmt.Errorf("pass to another cluster: %w", err)
	}
	s.wroteGroup(config, out.rev)
	return nil
}

// Bootstrap writes the first configuration and record of a group. It fails with ErrConflict if there is any.
func (s *Store) Bootstrap(ctx context.Context, g ag.Group, e ag.EpochRecord, st ag.State) error {
	config, err1 := s.encodeGroup(g)
	epoch, err2 := encode(e, maxRecordBytes)
	state, err3 := encode(st, maxRecordBytes)
	if err := errors.Join(checkEpoch(e), checkState(st), err1, err2, err3); err != nil {
		return fmt.Errorf("create the group's record: %w", err)
	}
	w := write{
		guards: []guard{{s.keys.config, 0}, {s.keys.epoch, 0}, {s.keys.state, 0}, {s.keys.lead, 0}},
		ops:    []op{put(s.keys.config, config), put(s.keys.epoch, epoch), put(s.keys.state, state)},
	}
	if err := s.sign(ctx, &w, ag.Revisions{}); err != nil {
		return fmt.Errorf("create the group's record: %w", err)
	}
	out, err := s.change(ctx, w)
	if err == nil && !out.made {
		err = fmt.Errorf("%w: group %s exists already", ErrConflict, s.cfg.Group)
	}
	if err != nil {
		return fmt.Errorf("create the group's record: %w", err)
	}
	s.wroteGroup(config, out.rev)
	return nil
}
