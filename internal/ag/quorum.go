package ag

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// This file is the arithmetic of the members that must acknowledge a commit and of those that may lead.
//
// The record says (V, k): every commit acknowledged so far is on at least k members of V, beside the leader.
// PostgreSQL says (P, n): a commit is acknowledged when n members of P have flushed it.
// A candidate that sealed |V| - k + 1 members of V has met at least one holder of every acknowledged commit.
//
// Three moves keep the meaning of (V, k) true, and every transition below is made of them:
//
//	shed     (V - x, k - 1)           commits on k of V are on k - 1 of the rest
//	weaken   (V + x, k), (V, k - 1)   a larger set, a smaller number
//	publish  (V', k')                 if (P, n) is proven in force with barrier B, k' <= n - |P \ V'|, and k' members
//	                                  of V' have flushed B: commits from before B are on those, later ones on n of P
//
// and PostgreSQL may be given (P', n') whenever k <= n' - |P' \ V|: then every commit it acknowledges keeps (V, k)
// true, whether a backend still uses the old setting or already the new one (docs/internals/safety.md, "Bookkeeping").

// SealsNeeded returns how many members of V a candidate must seal before it may choose a copy to promote.
func (s State) SealsNeeded() int { return len(s.V) - s.K + 1 }

// Holds reports whether acknowledgements under the setting keep the state's (V, k) true: k <= n - |P \ V|.
func (s State) Holds(c Sync) bool {
	if s.K == 0 {
		return true
	}
	outside := 0
	for _, p := range c.P {
		if _, in := s.InV(p); !in {
			outside++
		}
	}
	return s.K <= c.N-outside
}

// CommitTarget returns how many synchronous secondaries a commit should wait for (n), and the least number that it must
// wait for (required), by the table of docs/internals/safety.md, "Commit rule". secondaries counts the synchronous
// replicas beside the primary.
func (g Group) CommitTarget(secondaries int) (n, required int) {
	if secondaries == 0 {
		return 0, 0
	}
	f := (g.Voters() - 1) / 2
	required = max(0, min(f, secondaries-f))
	if g.Required != nil {
		required = min(*g.Required, secondaries)
	}
	n = max(1, min(f, secondaries))
	if g.CommitRule == RuleAll {
		n = secondaries
	}
	return max(n, required), required
}

// syncSecondaries returns the members whose acknowledgement counts while primary leads. A suspended member does not
// count, unless too few others are left for the REQUIRED that a person has set: then commits wait for it.
func (g Group) syncSecondaries(primary ReplicaID) []ReplicaID {
	var ids, suspended []ReplicaID
	for i := range g.Replicas {
		switch r := &g.Replicas[i]; {
		case r.ID == primary || r.AvailabilityMode != SynchronousCommit:
		case !r.Suspended:
			ids = append(ids, r.ID)
		case r.Join == "" && r.SuspendedBy != SuspendPartner && r.SuspendedBy != SuspendRemoval:
			suspended = append(suspended, r.ID)
		}
	}
	if g.Required != nil {
		ids = append(ids, suspended[:min(len(suspended), max(0, *g.Required-len(ids)))]...)
	}
	return ids
}

// RequiredBeside returns how many secondaries a commit must wait for now while that replica leads.
func (g Group) RequiredBeside(primary ReplicaID) int {
	_, required := g.CommitTarget(len(g.syncSecondaries(primary)))
	return required
}

// TakePart returns how many synchronous replicas beside one take part in commits, or will once they have joined.
// Suspended ones do not.
func (g Group) TakePart(beside ReplicaID) int {
	n := 0
	for i := range g.Replicas {
		if r := &g.Replicas[i]; r.ID != beside && r.Part() && r.AvailabilityMode == SynchronousCommit && (!r.Suspended || r.Join == NotJoined) {
			n++
		}
	}
	return n
}

// SyncStep is the next step that brings PostgreSQL's setting and the record's (V, k) to what the group wants. At most
// one of Set, Prove and State is set. If none is, nothing is to be done, or Because says what is waited for.
type SyncStep struct {
	Set     *Sync
	Prove   bool
	State   *State
	Because string
}

// NextSync returns that step for a leader. It is level-triggered and safe to lose after any step. Each record that it
// returns is true of all acknowledgements possible under the setting in force and under the one before it.
//
// A write of the record whose answer was lost may still take effect, until another write of the record does. So a
// setting MUST be announced in the record BEFORE PostgreSQL is given it. A write that was decided under another
// setting, with claims that only that setting kept true, then comes too late.
func NextSync(v *View) SyncStep {
	st, cur := v.Record.State, v.Local.Sync
	streams := func(p []ReplicaID) bool {
		return slices.ContainsFunc(v.Streams, func(s Stream) bool { return s.Open && slices.Contains(p, s.Member) })
	}
	want := wantedSync(v)
	switch {
	case v.Local.Attached && !cur.Proven && (cur.N == 0 || streams(cur.P)):
		return SyncStep{Prove: true, Because: "left by another agent: what is in force is proven before anything is recorded"}
	case v.Local.Attached && !cur.Proven && slices.ContainsFunc(cur.P, func(id ReplicaID) bool { return !v.lost(id) }):
		return SyncStep{Because: fmt.Sprintf("left by another agent: waiting for %s to stream, to prove what is in force", oneOf(cur.P))}
	case !st.Holds(want) || !st.Setting.Same(want.Setting()):
		return announce(v, st, want)
	case !cur.Setting().Same(want.Setting()):
		return SyncStep{Set: &want, Because: fmt.Sprintf("commits shall wait for %d of %s", want.N, Names(want.P))}
	}
	if m, changed := changedCopy(v); changed {
		return shed(st, m, fmt.Sprintf("%s holds another copy now", m.ID))
	}
	if m, gone := goneCopy(v, want, streams(want.P)); gone {
		return shed(st, m, fmt.Sprintf("%s says that its copy is gone, or is to be dropped", m.ID))
	}
	if !cur.Proven && want.N > 0 && !streams(want.P) {
		return SyncStep{Because: fmt.Sprintf("waiting for %s to stream", oneOf(want.P))}
	}
	if !cur.Proven {
		return SyncStep{Prove: true, Because: "the setting is not yet proven to be in force"}
	}
	for _, id := range want.P {
		if !v.copyKnown(id) && v.Record.State.Former.ID != id { // no candidate could seal it: it is unknown which copy was counted
			return SyncStep{Because: fmt.Sprintf("waiting for %s to stream", id)}
		}
	}
	there := slices.DeleteFunc(slices.Clone(want.P), v.gone)
	ms, k := membersOf(v, there), max(0, min(want.N-(len(want.P)-len(there)), flushedBy(v, there, cur.Barrier)))
	switch {
	case v.allLost(want.P):
		return SyncStep{Because: fmt.Sprintf("no commit is acknowledged: REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT asks for %d of %s, and none of them streams", want.N, Names(want.P))}
	case sameSet(ms, st.V) && k == st.K:
		if k < want.N {
			return SyncStep{Because: fmt.Sprintf("waiting for %d of %s to flush %s", want.N, Names(want.P), cur.Barrier)}
		}
		return SyncStep{}
	case k < max(min(st.K, want.N), min(1, want.N)):
		return SyncStep{Because: fmt.Sprintf("waiting for %d of %s to flush %s before the record changes", want.N, Names(want.P), cur.Barrier)}
	}
	next := st.Clone()
	next.V, next.K = ms, k
	return SyncStep{State: &next, Because: fmt.Sprintf("V = %s, k = %d: flushed up to barrier %s", Names(want.P), k, cur.Barrier)}
}

// changedCopy returns a member of V that streams with another copy than the one that V names. The acknowledgements of
// the old copy prove nothing about the new one (docs/internals/safety.md, "Copies").
func changedCopy(v *View) (Member, bool) {
	for _, m := range v.Record.State.V {
		if s, ok := v.stream(m.ID); ok && s.Open && s.Copy != m.Copy {
			return m, true
		}
	}
	return Member{}, false
}

// goneCopy returns a member of V that will not stream again before V has dropped it, and that no other setting would
// drop. Either commits are to wait for it all the same, or they wait for others of which none streams, so that no
// setting can be proven.
func goneCopy(v *View, want Sync, streams bool) (Member, bool) {
	for _, m := range v.Record.State.V {
		if v.gone(m.ID) && (slices.Contains(want.P, m.ID) || !streams) {
			return m, true
		}
	}
	return Member{}, false
}

// gone reports whether a member itself reports that it no longer has the copy that V counts. A mistake costs a
// re-admission, never data.
func (v *View) gone(id ReplicaID) bool {
	s, known := v.stream(id)
	return known && !s.Open && s.Gone
}

// bare reports whether a member that V does not count reports that it has no whole copy of the group's cluster. It
// cannot stream before it has another one. That takes longer than any wait for a first stream, and it is admitted then.
// One that V counts is not taken out so: V says what is on its copy, and only goneCopy ends that.
func (v *View) bare(id ReplicaID) bool {
	s, known := v.stream(id)
	_, in := v.Record.State.InV(id)
	return known && !s.Open && s.Bare && !in
}

// shed takes a member out of V and promises one acknowledgement fewer. That is true at any time.
func shed(st State, m Member, because string) SyncStep {
	next := st.Clone()
	next.V = slices.DeleteFunc(next.V, func(x Member) bool { return x == m })
	next.K = max(0, next.K-1)
	return SyncStep{State: &next, Because: because}
}

// announce writes the setting into the record, with the (V, k) that the setting keeps true.
func announce(v *View, st State, want Sync) SyncStep {
	next := st.Clone()
	next.Setting = want.Setting()
	if st.Holds(want) {
		return SyncStep{State: &next, Because: fmt.Sprintf("recorded before PostgreSQL is told to wait for %d of %s", want.N, Names(want.P))}
	}
	for _, m := range st.V {
		if !slices.Contains(want.P, m.ID) && next.K > want.N {
			next.V = slices.DeleteFunc(next.V, func(x Member) bool { return x.ID == m.ID })
			next.K--
		}
	}
	if len(next.V) == len(st.V) {
		for _, m := range membersOf(v, want.P) {
			if _, in := next.InV(m.ID); !in {
				next.V = append(next.V, m)
			}
		}
		next.K = min(next.K, want.N)
	}
	return SyncStep{State: &next, Because: fmt.Sprintf("recorded before PostgreSQL is told to wait for %d of %s", want.N, Names(want.P))}
}

// wantedSync returns the setting that the group should have now. P holds the members that stream closely enough, and
// those already waited for unless they are lost or have nothing to stream. N is the number that the commit rule
// requires, as far as the members allow it, and never below REQUIRED.
func wantedSync(v *View) Sync {
	eligible := v.Group.syncSecondaries(v.Self)
	n, required := v.Group.CommitTarget(len(eligible))
	var p []ReplicaID
	for _, id := range eligible {
		s, known := v.stream(id)
		was := slices.Contains(v.Local.Sync.P, id)
		streams := known && s.Open && (s.Close || was)
		if !v.lost(id) && (streams || was && (v.came(id) || s.Silent < v.firstStream()) && !v.bare(id)) { // an open stream says nothing: its end may hang
			p = append(p, id)
		}
	}
	alive := len(p)
	if alive < required { // a member that does not stream is better than an acknowledgement below REQUIRED
		for _, id := range slices.Concat(v.Local.Sync.P, eligible) {
			was := slices.Contains(v.Local.Sync.P, id)
			if (was || len(p) < required) && slices.Contains(eligible, id) && !slices.Contains(p, id) {
				p = append(p, id)
			}
		}
	}
	slices.Sort(p)
	return Sync{P: p, N: min(max(n, required), max(alive, required), len(p))}
}

// copyKnown reports whether it is known which copy a member holds: from its stream, or from the record.
func (v *View) copyKnown(id ReplicaID) bool {
	s, _ := v.stream(id)
	_, in := v.Record.State.InV(id)
	return s.Copy != "" || in
}

// came reports whether a member has streamed in this epoch. Its stream told which copy it holds, or V tells, unless V
// is still what the epoch started with.
func (v *View) came(id ReplicaID) bool {
	s, _ := v.stream(id)
	initial := v.Local.Opened != v.epoch() && v.Local.EndOfRec != 0 && !v.Local.Attached
	return s.Copy != "" || v.copyKnown(id) && !initial
}

// FirstStreamTimeout is how long a new leader waits for the streams of the members that it was promoted with. After
// that it continues with those that have connected; a later one is admitted when it connects.
const FirstStreamTimeout = 500 * time.Millisecond

// FirstMemberTimeout is how long it waits while no member has connected. After that the group is recorded as degraded,
// if REQUIRED allows it (docs/internals/safety.md, "Promotion").
const FirstMemberTimeout = 3 * time.Second

// firstStream returns how long a member that commits wait for may take to stream for the first time in this epoch.
func (v *View) firstStream() time.Duration {
	for _, id := range v.Local.Sync.P {
		if s, ok := v.stream(id); ok && s.Open {
			return FirstStreamTimeout
		}
	}
	return FirstMemberTimeout
}

// RefusedTimeout is how long a member is waited for whose streams were reset and whose endpoint refuses connections.
const RefusedTimeout = time.Second

// lost reports whether a member no longer counts. It was silent for SESSION_TIMEOUT, or its stream has been closed for
// a second and its endpoint refuses connections (docs/internals/safety.md, "Bookkeeping"), or it reports that it no
// longer has its copy. A mistake costs a re-admission, never data.
func (v *View) lost(id ReplicaID) bool {
	s, known := v.stream(id)
	r, ok := v.Group.Replica(id)
	if !ok || r.Suspended || !known {
		return true
	}
	return v.gone(id) || s.Silent >= v.Group.Timeout(r) || !s.Open && s.Refused && s.Silent >= RefusedTimeout
}

// allLost reports whether commits wait only for members that are lost, because of REQUIRED.
func (v *View) allLost(p []ReplicaID) bool {
	return len(p) > 0 && !slices.ContainsFunc(p, func(id ReplicaID) bool { return !v.lost(id) })
}

func (v *View) stream(id ReplicaID) (Stream, bool) {
	i := slices.IndexFunc(v.Streams, func(s Stream) bool { return s.Member == id })
	if i < 0 {
		return Stream{}, false
	}
	return v.Streams[i], true
}

// flushedBy counts the members of p whose stream of this epoch has flushed up to the barrier.
func flushedBy(v *View, p []ReplicaID, barrier LSN) int {
	n := 0
	for _, id := range p {
		if s, ok := v.stream(id); ok && s.Open && s.Flush >= barrier {
			n++
		}
	}
	return n
}

// membersOf pairs the members with the copies that their streams announced, or that the record holds.
func membersOf(v *View, p []ReplicaID) []Member {
	ms := make([]Member, 0, len(p))
	for _, id := range p {
		m := Member{ID: id}
		if s, ok := v.stream(id); ok && s.Copy != "" {
			m.Copy = s.Copy
		} else if old, ok := v.Record.State.InV(id); ok {
			m.Copy = old.Copy
		} else if old := v.Record.State.Former; old.ID == id {
			m.Copy = old.Copy
		}
		ms = append(ms, m)
	}
	return ms
}

// sameSet reports whether a and b hold the same elements; neither has duplicates.
func sameSet[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for _, x := range a {
		if !slices.Contains(b, x) {
			return false
		}
	}
	return true
}

// Errors of Acknowledged: waiting does not help.
var (
	ErrNotLeading = errors.New("this node does not lead a server that takes writes")
	ErrNotCovered = errors.New("the synchronous setting does not keep the record true")
)

// Acknowledged reports whether a commit that ends at or before lsn may be acknowledged, given what the streams of the
// current epoch have flushed. It counts as PostgreSQL does: N members of the setting in force. A copy other than the
// one that the record names does not count. PostgreSQL's own wait establishes the same, so everything that follows from
// that wait (the three moves above) follows from this.
//
// lsn MUST be taken BEFORE the view. A setting that a later view shows as proven has sampled its barrier later still,
// so that barrier lies at or behind lsn.
func (v *View) Acknowledged(lsn LSN, streams []Stream) (bool, error) {
	e, st, set := v.Record.Epoch, v.Record.State, v.Local.Sync
	switch {
	case e.Leader != v.Self || e.Phase != PhaseLead || st.Epoch != e.Epoch || v.Local.Server != ServerWritable:
		return false, ErrNotLeading
	case !st.Holds(set):
		return false, ErrNotCovered
	}
	n := 0
	for _, id := range set.P {
		for _, s := range streams {
			m, in := st.InV(id)
			if s.Member == id && s.Open && s.Flush >= lsn && (!in || m.Copy == s.Copy) {
				n++
				break
			}
		}
	}
	return n >= set.N, nil
}

// FeedbackTimeout is how long a member with an open stream may be silent before its acknowledgement counts as missing.
// A stream without traffic is probed every 3 s.
const FeedbackTimeout = 4 * time.Second

// CommitsWait reports whether the commits of this primary wait for acknowledgements that do not come, for how long they
// have, and why. because is "" if commits are acknowledged, or if this node is not the primary.
func (v *View) CommitsWait() (since time.Duration, because string) {
	set := v.Local.Sync
	if v.Role() != RolePrimary || set.N == 0 {
		return 0, ""
	}
	var silences []time.Duration
	var missing []ReplicaID
	for _, id := range set.P {
		s, known := v.stream(id)
		if known && s.Open && s.Silent < FeedbackTimeout {
			silences = append(silences, 0)
			continue
		}
		missing = append(missing, id)
		silences = append(silences, s.Silent)
	}
	slices.Sort(silences)
	if len(set.P)-len(missing) >= set.N {
		return 0, ""
	}
	if set.N <= len(silences) {
		since = silences[set.N-1]
	}
	_, required := v.Group.CommitTarget(len(v.Group.syncSecondaries(v.Self)))
	because = fmt.Sprintf("commits wait for %d of %s, and %s do not acknowledge", set.N, Names(set.P), Names(missing))
	if len(missing) == 1 {
		because = fmt.Sprintf("commits wait for %d of %s, and %s does not acknowledge", set.N, Names(set.P), Names(missing))
	}
	if len(v.Group.syncSecondaries(v.Self))-len(missing) < required {
		because += fmt.Sprintf("; REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT asks for %d", required)
	}
	return since, because
}

// oneOf returns ids as a text of which one is meant: a, or one of a, b, c.
func oneOf(ids []ReplicaID) string {
	if len(ids) == 1 {
		return string(ids[0])
	}
	return "one of " + Names(ids)
}

// Names returns ids as a text: a, b, c.
func Names(ids []ReplicaID) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = string(id)
	}
	return strings.Join(texts, ", ")
}
