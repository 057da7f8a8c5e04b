package ag

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Epoch is the fencing number of the group: it grows by one at every change of leadership and never goes back (S2).
// It is not the timeline.
type Epoch uint64

// Phase is how far the leadership of an epoch has come. Only LEAD gives rights
// (docs/internals/safety.md, "Epochs and phases").
type Phase string

// The phases of an epoch: SEAL (a candidate gathers seals), PROMOTE (the best copy is being promoted), LEAD (writes
// open).
const (
	PhaseSeal    Phase = "SEAL"
	PhasePromote Phase = "PROMOTE"
	PhaseLead    Phase = "LEAD"
)

// Timeline is PostgreSQL's timeline id.
type Timeline uint32

// LSN is a byte position in PostgreSQL's write-ahead log.
type LSN uint64

// String prints the LSN as PostgreSQL does, as in 0/15C05B0.
func (l LSN) String() string { return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l)) }

// ParseLSN reads PostgreSQL's text form of an LSN.
func ParseLSN(s string) (LSN, error) {
	hi, lo, ok := strings.Cut(s, "/")
	h, err1 := strconv.ParseUint(hi, 16, 32)
	l, err2 := strconv.ParseUint(lo, 16, 32)
	if !ok || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("%q is not a WAL position such as 0/15C05B0", s)
	}
	return LSN(h<<32 | l), nil
}

// Position is a place in the history of the data. Two positions can be compared only if they lie on one history.
type Position struct {
	Timeline Timeline `json:"tli"` // PostgreSQL's
	LSN      LSN      `json:"lsn"` // a byte position in the WAL; PostgreSQL prints it as two hexadecimal halves
}

// String prints the position as timeline:LSN, as in 3:0/15C05B0.
func (p Position) String() string { return fmt.Sprintf("%d:%s", p.Timeline, p.LSN) }

// Compare orders positions by timeline, then LSN. The caller must know that both lie on one history.
func (p Position) Compare(q Position) int {
	switch {
	case p.Timeline != q.Timeline && p.Timeline < q.Timeline:
		return -1
	case p.Timeline != q.Timeline:
		return 1
	case p.LSN < q.LSN:
		return -1
	case p.LSN > q.LSN:
		return 1
	}
	return 0
}

// Member is an entry of V: a replica together with the copy it held when it was admitted.
type Member struct {
	ID   ReplicaID `json:"id"`   // the name of the member
	Copy CopyID    `json:"copy"` // of its data directory: a UUID
}

// TimelineEntry allots one timeline id to one epoch (docs/internals/safety.md, "Timelines").
type TimelineEntry struct {
	TLI    Timeline `json:"tli"`
	Parent Timeline `json:"parent"`
	Switch LSN      `json:"switch_lsn"` // where it leaves its parent
	Epoch  Epoch    `json:"epoch"`
	// Leader is the replica that led the epoch; "": it is not known, as of epochs that earlier versions led.
	Leader ReplicaID `json:"leader,omitempty"`
	// Until is how far the promoted copy had its parent's WAL, if that is beyond Switch: the beginning of a record
	// whose end it never received. A copy that has no more of the parent's WAL has the same bytes, and can follow.
	Until LSN `json:"until,omitempty"`
	// Xids are the numbers of transactions at Switch, as far as they are known.
	Xids Xids `json:"xids,omitzero"`
	// Reused: its server went down without an orderly end and was started as the primary of the same epoch. It may give
	// numbers again whose transactions were not in its WAL then.
	Reused bool `json:"reused,omitempty"`
}

// Xids bound the numbers of transactions (xid8) of earlier timelines where a timeline leaves its parent. Each bound is
// sound by itself; between the two a number may have been given again. 0: not known.
type Xids struct {
	// Kept: each number below was given before the switch, and is never given again on this timeline or a later one.
	Kept uint64 `json:"kept,omitempty"`
	// Lost: no transaction with this number or a higher one was committed before the switch.
	Lost uint64 `json:"lost,omitempty"`
}

// leaves returns the position from which WAL of the parent does not belong to this history.
func (t TimelineEntry) leaves() LSN { return max(t.Switch, t.Until) }

// EpochRecord is the value of the store's /epoch key: the replica that leads, or tries to.
type EpochRecord struct {
	Epoch  Epoch     `json:"epoch"`
	Phase  Phase     `json:"phase"`
	Leader ReplicaID `json:"leader"`         // the candidate during SEAL, the chosen replica from PROMOTE on
	TLI    Timeline  `json:"tli,omitempty"`  // from PROMOTE on: the timeline id of this epoch
	MaxTLI Timeline  `json:"max_tli"`        // the highest timeline id ever allotted; it passes from epoch to epoch so that no id is used twice
	From   Position  `json:"from,omitzero"`  // from PROMOTE on: where the epoch's timeline leaves its parent, as expected
	Copy   CopyID    `json:"copy,omitempty"` // during PROMOTE: the chosen copy, if it is known; no other may be promoted
	// V and K during PROMOTE. Everything acknowledged in earlier epochs is on at least K members of V, beside the
	// chosen copy. The log of each member of V is a prefix of the chosen one. The epoch starts with them
	// (View.firstSyncSet).
	V      []Member `json:"v,omitempty"`
	K      int      `json:"k,omitempty"`
	Forced bool     `json:"forced,omitempty"` // an operator accepted the loss
	// Unled are the timeline ids of forced failovers since the last LEAD that did not come to lead. A log on one of
	// them may lack acknowledged commits, and is not chosen.
	Unled []Timeline `json:"unled,omitempty"`
	// Unheard is the leader that was deposed for its silence, before its lease had ended. It may have been alive.
	Unheard Evidence `json:"unheard,omitzero"`
	// Outgoing is the leader that a forced failover deposed, if it may still answer clients.
	Outgoing Outgoing `json:"outgoing,omitzero"`
	Reason   string   `json:"reason,omitempty"`
}

// unled returns the Unled of the epoch that follows before this one has led.
func (e EpochRecord) unled() []Timeline {
	switch {
	case e.Phase == PhaseLead:
		return nil
	case e.Phase == PhasePromote && e.Forced:
		return append(slices.Clone(e.Unled), e.TLI)
	}
	return e.Unled
}

// State is the value of the store's /state key. It means that every commit acknowledged so far is on at least K members
// of V, beside the leader. If K is 0, only the leader named here may lead. Only a leader in LEAD writes it.
type State struct {
	Epoch     Epoch           `json:"epoch"`
	Leader    ReplicaID       `json:"leader"`
	Copy      CopyID          `json:"copy"` // the leader's own copy
	V         []Member        `json:"v"`
	K         int             `json:"k"`
	Setting   Setting         `json:"setting"` // given to PostgreSQL AFTER it is written here: see NextSync
	Basis     Position        `json:"basis"`   // end of recovery of the epoch: where its own history begins
	Timelines []TimelineEntry `json:"timelines"`
	// Former is the previous leader with its copy, if it could be reached when the new leader took over. It will stream
	// with that copy, so the leader need not wait until its stream names the copy.
	Former Member `json:"former,omitzero"`
	Seq    uint64 `json:"seq"` // grows by one with every write of /state
}

// Setting is a synchronous setting: a commit waits for N of the members P.
type Setting struct {
	P []ReplicaID `json:"p"`
	N int         `json:"n"`
}

// Same reports whether two settings are equal.
func (s Setting) Same(t Setting) bool { return s.N == t.N && sameSet(s.P, t.P) }

// Lead is the value of the store's /lead key: the heartbeat of the holder in LEAD, and the progress of a candidate.
// Observers time its revisions on their own clocks; no clock is compared with the value.
type Lead struct {
	Epoch       Epoch     `json:"epoch"`
	Holder      ReplicaID `json:"holder"`
	Incarnation string    `json:"incarnation"` // of the agent that writes
	Released    bool      `json:"released,omitempty"`
	Restarting  bool      `json:"restarting,omitempty"` // the agent announced a restart in place
	Progress    string    `json:"progress,omitempty"`   // of a candidate or a promotion, which renews when this changes
	Answer      Answer    `json:"answer,omitzero"`      // the holder's answer lease
	// Observer is how long the holder must then be silent before another may claim its epoch; 0: as the configured
	// profile says.
	Observer time.Duration `json:"observer,omitempty"`
	// Settled: the epoch's outgoing leader can answer nobody any more. The holder has seen that; a later agent cannot.
	Settled bool `json:"settled,omitempty"`
}

// Same reports whether two heartbeats are equal, so that the newer one only renews the older.
func (l Lead) Same(m Lead) bool {
	return l.Epoch == m.Epoch && l.Holder == m.Holder && l.Incarnation == m.Incarnation && l.Released == m.Released &&
		l.Restarting == m.Restarting && l.Progress == m.Progress && l.Answer.Same(m.Answer) && l.Observer == m.Observer && l.Settled == m.Settled
}

// Record is the agreed state of the group, with the store revisions at which it was read. Every change is a
// compare-and-swap on them.
type Record struct {
	Epoch EpochRecord `json:"epoch"`
	State State       `json:"state"`
	Lead  Lead        `json:"lead"`
	Revs  Revisions   `json:"revisions"`
	Votes []Vote      `json:"votes,omitempty"`
}

// Revisions are the store's modification revisions of the three keys of a Record; zero means the key is absent.
type Revisions struct {
	Epoch int64 `json:"epoch"`
	State int64 `json:"state"`
	Lead  int64 `json:"lead"`
}

// Counts reports whether the record rests on a copy of a replica, or may come to: it is one of V or of those that the
// epoch starts with, it led last or is to lead, or it is the copy of the leader before.
func (r Record) Counts(m Member) bool {
	e, s := r.Epoch, r.State
	return slices.Contains(slices.Concat(s.V, e.V, []Member{{s.Leader, s.Copy}, {e.Leader, e.Copy}, s.Former}), m)
}

// InV returns V's entry for the replica.
func (s State) InV(id ReplicaID) (Member, bool) {
	i := slices.IndexFunc(s.V, func(m Member) bool { return m.ID == id })
	if i < 0 {
		return Member{}, false
	}
	return s.V[i], true
}

// Clone returns a copy that shares no memory with s.
func (s State) Clone() State {
	s.V, s.Timelines, s.Setting.P = slices.Clone(s.V), slices.Clone(s.Timelines), slices.Clone(s.Setting.P)
	return s
}

// Profile is a lease profile: the timing of renewal, expiry and takeover. Validate checks how they relate.
type Profile struct {
	Name     string        `json:"name"`
	Heart    time.Duration `json:"heartbeat"` // H: how often the leader renews
	Request  time.Duration `json:"request"`   // R: time limit of one store call
	Lease    time.Duration `json:"lease"`     // L: the holder may act for this long after it sent a successful renewal
	Fence    time.Duration `json:"fence"`     // F: worst time from the deadline until the last effect is impossible
	Observer time.Duration `json:"observer"`  // O: silence after which an observer may take over
	Beat     time.Duration `json:"beat"`      // HB: the longest interval between two heartbeats of the leader to a voter
	Answer   time.Duration `json:"answer"`    // G: the answer lease, counted from a heartbeat that a majority acknowledged
	Floor    time.Duration `json:"floor"`     // a pause of the leader's heartbeats that is so long is never unusual
}

// Rho bounds how much the rate of any two clocks of the group may differ.
const Rho = 0.01

// Profiles are the lease profiles of the design, by name.
var Profiles = map[string]Profile{
	"default": {
		Name: "default", Heart: 750 * time.Millisecond, Request: time.Second, Lease: 5 * time.Second, Fence: time.Second,
		Observer: 6500 * time.Millisecond, Beat: 100 * time.Millisecond, Answer: 400 * time.Millisecond, Floor: 1500 * time.Millisecond,
	},
	"fast": {
		Name: "fast", Heart: 300 * time.Millisecond, Request: 500 * time.Millisecond, Lease: 2200 * time.Millisecond, Fence: 500 * time.Millisecond,
		Observer: 3 * time.Second, Beat: 50 * time.Millisecond, Answer: 200 * time.Millisecond, Floor: 600 * time.Millisecond,
	},
	"wan": {
		Name: "wan", Heart: 2 * time.Second, Request: 4 * time.Second, Lease: 15 * time.Second, Fence: time.Second,
		Observer: 17 * time.Second, Beat: 500 * time.Millisecond, Answer: 2 * time.Second, Floor: 4 * time.Second,
	},
}

// Progress returns how long a candidate or a promotion may be silent before it may be outbid. It renews no more often
// than the profile says.
func (p Profile) Progress() time.Duration { return max(ProgressTimeout, 2*p.Heart) }

// Declared returns the O that a holder declares with a renewal: the profile's, or more if the holder still has a longer
// lease from an earlier profile, by the same inequality. So the profile can be changed while the group runs: a claimant
// has waited for what the holder declared last.
func (p Profile) Declared(left time.Duration) time.Duration {
	need := (float64(left)/(1-Rho) + float64(p.Fence)) * (1 + Rho)
	return max(p.Observer, time.Duration(need)+1)
}

// WithFence returns the profile with the fencing time that was measured on a host.
func (p Profile) WithFence(f time.Duration) Profile {
	p.Fence = f
	return p
}

// Validate refuses a profile whose observers could take over while its holder may still act: O/(1+rho) >= L/(1-rho) + F
// (docs/internals/safety.md, "Lease").
func (p Profile) Validate() error {
	left := float64(p.Observer) / (1 + Rho)
	right := float64(p.Lease)/(1-Rho) + float64(p.Fence)
	if left < right {
		return fmt.Errorf("lease profile %q is unsafe: O/(1+rho) = %v is less than L/(1-rho)+F = %v (O %v, L %v, F %v, rho %v); raise O or lower L",
			p.Name, time.Duration(left).Round(time.Millisecond), time.Duration(right).Round(time.Millisecond), p.Observer, p.Lease, p.Fence, Rho)
	}
	return nil
}

// later has what a later version of the program has written in an object, and this one does not know: by its name. A
// change by this one writes it back as it was. Else a member that is not updated yet would take back, unseen, what an
// administrator has set at one that is; and those that know it would refuse the result if it may not be taken back.
type later map[string]json.RawMessage

// The names that this version knows in each object of a configuration.
var (
	groupNames   = append(namesIn(reflect.TypeFor[Group]()), "signature") // that is of the stored value, not of what it says
	replicaNames = namesIn(reflect.TypeFor[Replica]())
	optionNames  = namesIn(reflect.TypeFor[Options]())
	ownNames     = namesIn(reflect.TypeFor[ReplicaOptions]())
	turnNames    = namesIn(reflect.TypeFor[Rotation]())
)

func namesIn(t reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// read decodes an object into known, and returns what is left of it.
func read(b []byte, known any, names []string) (later, error) {
	var all later
	if err := errors.Join(json.Unmarshal(b, known), json.Unmarshal(b, &all)); err != nil {
		return nil, err
	}
	maps.DeleteFunc(all, func(name string, _ json.RawMessage) bool {
		return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) })
	})
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}

// write encodes an object whose known part is known.
func (l later) write(known any) ([]byte, error) {
	b, err := json.Marshal(known)
	if err != nil || len(l) == 0 {
		return b, err
	}
	rest, err := json.Marshal(map[string]json.RawMessage(l)) // in the order of the names
	if err != nil || len(b) == len("{}") {
		return rest, err
	}
	return slices.Concat(b[:len(b)-1], []byte(","), rest[1:]), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (g *Group) UnmarshalJSON(b []byte) (err error) {
	type known Group
	g.later, err = read(b, (*known)(g), groupNames)
	return err
}

// MarshalJSON implements json.Marshaler.
func (g Group) MarshalJSON() ([]byte, error) {
	type known Group
	return g.later.write(known(g))
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Replica) UnmarshalJSON(b []byte) (err error) {
	type known Replica
	r.later, err = read(b, (*known)(r), replicaNames)
	return err
}

// MarshalJSON implements json.Marshaler.
func (r Replica) MarshalJSON() ([]byte, error) {
	type known Replica
	return r.later.write(known(r))
}

// UnmarshalJSON implements json.Unmarshaler.
func (o *Options) UnmarshalJSON(b []byte) (err error) {
	type known Options
	o.later, err = read(b, (*known)(o), optionNames)
	return err
}

// MarshalJSON implements json.Marshaler.
func (o Options) MarshalJSON() ([]byte, error) {
	type known Options
	return o.later.write(known(o))
}

// UnmarshalJSON implements json.Unmarshaler.
func (o *ReplicaOptions) UnmarshalJSON(b []byte) (err error) {
	type known ReplicaOptions
	o.later, err = read(b, (*known)(o), ownNames)
	return err
}

// MarshalJSON implements json.Marshaler.
func (o ReplicaOptions) MarshalJSON() ([]byte, error) {
	type known ReplicaOptions
	return o.later.write(known(o))
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Rotation) UnmarshalJSON(b []byte) (err error) {
	type known Rotation
	r.later, err = read(b, (*known)(r), turnNames)
	return err
}

// MarshalJSON implements json.Marshaler.
func (r Rotation) MarshalJSON() ([]byte, error) {
	type known Rotation
	return r.later.write(known(r))
}
