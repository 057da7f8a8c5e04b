package etcd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
)

// Size limits of the values, in bytes, both when writing and when reading.
const (
	maxRecordBytes = 64 << 10 // epoch, state, lead: each
	maxConfigBytes = 256 << 10
	maxOpBytes     = 64 << 10
	maxStatusBytes = 32 << 10 // per replica
	maxTokenBytes  = 16 << 10
	maxVoteBytes   = 1 << 10
	maxStatuses    = 64  // replicas with a status report
	maxTokens      = 256 // join tokens kept, used ones included
	maxReplicas    = 64
)

var replicaPattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,29}$`)

// encode renders v for a key of that size limit.
func encode(v any, limit int) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if len(b) > limit {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(b), limit)
	}
	return b, nil
}

// decode reads exactly one JSON value from k into v. Unknown fields are accepted: a newer version may have written
// them.
func decode(k kv, limit int, v any) error {
	corrupt := func(why error) error { return fmt.Errorf("%w: %s: %w", ErrCorrupt, k.key, why) }
	if len(k.value) > limit {
		return corrupt(fmt.Errorf("%d bytes, the limit is %d", len(k.value), limit))
	}
	d := json.NewDecoder(bytes.NewReader(k.value))
	if err := d.Decode(v); err != nil {
		return corrupt(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return corrupt(errors.New("more than one value"))
	}
	return nil
}

// raw checks that b is one JSON value within the limit.
func raw(b json.RawMessage, limit int) error {
	if len(b) > limit {
		return fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, len(b), limit)
	}
	if !json.Valid(b) {
		return errors.New("the value is not JSON")
	}
	return nil
}

func readRaw(k kv, limit int) (json.RawMessage, error) {
	if err := raw(k.value, limit); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrCorrupt, k.key, err)
	}
	return k.value, nil
}

// decodeRecord reads the three keys of the record; an absent one stays zero with revision zero.
func decodeRecord(epoch, state, lead kv) (ag.Record, error) {
	r := ag.Record{Revs: ag.Revisions{Epoch: epoch.rev, State: state.rev, Lead: lead.rev}}
	for _, part := range []struct {
		kv    kv
		into  any
		check func() error
	}{
		{epoch, &r.Epoch, func() error { return checkEpoch(r.Epoch) }},
		{state, &r.State, func() error { return checkState(r.State) }},
		{lead, &r.Lead, func() error { return checkLead(r.Lead) }},
	} {
		if part.kv.rev == 0 {
			continue
		}
		if err := decode(part.kv, maxRecordBytes, part.into); err != nil {
			return ag.Record{}, err
		}
		if err := part.check(); err != nil {
			return ag.Record{}, fmt.Errorf("%w: %s: %w", ErrCorrupt, part.kv.key, err)
		}
	}
	return r, nil
}

// The checks refuse values that no version writes; they are made before writing and after reading.

func checkEpoch(e ag.EpochRecord) error {
	if e.Epoch == 0 {
		return errors.New("epoch 0")
	}
	switch e.Phase {
	case ag.PhaseSeal, ag.PhasePromote, ag.PhaseLead:
	default:
		return fmt.Errorf("phase %q", e.Phase)
	}
	return checkID(e.Leader, true)
}

func checkState(s ag.State) error {
	if s.K < 0 || s.K > len(s.V) || len(s.V) > maxReplicas {
		return fmt.Errorf("k %d of %d members", s.K, len(s.V))
	}
	seen := map[ag.ReplicaID]bool{}
	for _, m := range s.V {
		if err := checkID(m.ID, false); err != nil {
			return err
		}
		if seen[m.ID] {
			return fmt.Errorf("member %s twice in V", m.ID)
		}
		seen[m.ID] = true
	}
	return checkID(s.Leader, true)
}

func checkVote(v ag.Vote) error {
	if v.Epoch == 0 || v.Waited <= 0 || v.Incarnation == "" {
		return fmt.Errorf("a vote of %s that says nothing: %+v", v.Member, v)
	}
	return checkID(v.Member, false)
}

// decodeVotes reads the votes; an unreadable one does not count.
func decodeVotes(prefix string, kvs []kv) (votes []ag.Vote, bad []error) {
	for _, k := range kvs {
		var v ag.Vote
		err := decode(k, maxVoteBytes, &v)
		if err == nil {
			err = checkVote(v)
		}
		if err == nil && prefix+string(v.Member) != k.key {
			err = fmt.Errorf("%w: %s: the vote of %s", ErrCorrupt, k.key, v.Member)
		}
		if err != nil {
			bad = append(bad, err)
			continue
		}
		v.Rev = k.rev
		votes = append(votes, v)
	}
	return votes, bad
}

func checkLead(l ag.Lead) error { return checkID(l.Holder, true) }

func checkGroup(g ag.Group, id ag.GroupID) error {
	if g.ID != id {
		return fmt.Errorf("configuration of group %q in the store of group %q", g.ID, id)
	}
	if len(g.Replicas) > maxReplicas {
		return fmt.Errorf("%d replicas, the limit is %d", len(g.Replicas), maxReplicas)
	}
	seen := map[ag.ReplicaID]bool{}
	for _, r := range g.Replicas {
		if err := checkID(r.ID, false); err != nil {
			return err
		}
		if seen[r.ID] {
			return fmt.Errorf("replica %s twice in the configuration", r.ID)
		}
		seen[r.ID] = true
	}
	return nil
}

func checkID(id ag.ReplicaID, mayBeEmpty bool) error {
	if id == "" && mayBeEmpty || replicaPattern.MatchString(string(id)) {
		return nil
	}
	return fmt.Errorf("replica name %q: want a lower-case letter, then letters, digits or _ (30 characters at most)", id)
}

// decodeStatuses reads the status reports; an unreadable one is left out and returned in bad.
func decodeStatuses(prefix string, kvs []kv) (statuses map[ag.ReplicaID]json.RawMessage, bad []error) {
	statuses = map[ag.ReplicaID]json.RawMessage{}
	for _, k := range kvs {
		id := ag.ReplicaID(strings.TrimPrefix(k.key, prefix))
		value, err := readRaw(k, maxStatusBytes)
		if err == nil {
			err = checkID(id, false)
		}
		if err != nil {
			bad = append(bad, err)
			continue
		}
		statuses[id] = value
	}
	return statuses, bad
}
