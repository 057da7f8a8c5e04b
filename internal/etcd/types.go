package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Sentinel errors. Test with errors.Is; the text around them names the key or member.
var (
	// ErrNoRecord: the store answered, and holds no record of this group.
	ErrNoRecord = errors.New("the quorum store holds no record of this group")
	// ErrConflict: another writer changed a guarded key. The change was not made; or, as the text of Commit's error
	// says, it was made and has already been overtaken by a later epoch.
	ErrConflict = errors.New("the record was changed by another member")
	// ErrUnknown: the call ended before its outcome was known. The change may or may not have been made: read again.
	ErrUnknown = errors.New("the outcome of the change is unknown")
	// ErrCorrupt: a key holds something this version cannot accept.
	ErrCorrupt = errors.New("the quorum store holds an unreadable value")
	// ErrForged: no replica has written a part of the record, or not at the place in its key's history where it is.
	ErrForged = errors.New("no replica has written it where it is in the quorum's store")
	// ErrTooLarge: a value exceeds the size limit of its key.
	ErrTooLarge = errors.New("the value is too large for the quorum store")
	// ErrNoQuorum: no endpoint answered in time. It wraps the error of each endpoint that was tried.
	ErrNoQuorum = errors.New("no quorum member answered in time")
	// ErrNoSpace: the store has reached its quota and refuses writes.
	ErrNoSpace = errors.New("the quorum store is out of space")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("the quorum store is closed")

	// ErrTokenUnknown, ErrTokenUsed and ErrTokenExpired: a join token is refused.
	ErrTokenUnknown = errors.New("no such join token")
	ErrTokenUsed    = errors.New("the join token was used already")
	ErrTokenExpired = errors.New("the join token has expired")

	// ErrNotReady: a learner did not catch up in time.
	ErrNotReady = errors.New("the new quorum member has not caught up")
)

// StoreConfig describes how to reach the quorum store, and the group.
type StoreConfig struct {
	// Group is the group whose record this is; every key lies below its prefix.
	Group ag.GroupID
	// Dial opens a connection to an endpoint's etcd client port. Endpoint names are the ones of Endpoints.
	Dial func(ctx context.Context, endpoint string) (net.Conn, error)
	// Endpoints are the voters in order of preference. Names are opaque, such as "n1".
	Endpoints []string
	// CallTimeout bounds every call, whatever the caller's context allows. Default one second.
	CallTimeout time.Duration
	// Replica owns the attempt key of this store. There is one per replica, so that the first change of a new
	// incarnation voids the changes that an older one still has under way. Default: Attempt.
	Replica ag.ReplicaID
	// Attempt is the incarnation of the writer; it is part of every attempt id.
	Attempt string
	// Logger gets endpoint failures at debug level and surprises at warn. Default: discard.
	Logger *slog.Logger
	// Now is the wall clock, for the expiry of join tokens only. Default time.Now.
	Now func() time.Time
	// Endorser signs the configuration, the record and the operator's request, and decides which are used. nil: they
	// are written and read as they are.
	Endorser Endorser
}

// Endorser signs what is written by which others act, and verifies what is read: every member of the quorum can write
// it, a witness too. All methods may be called concurrently.
type Endorser interface {
	// Sign returns the value of a configuration.
	Sign(g ag.Group) (value []byte, err error)
	// Reading is called before a read begins. The function that it returns takes the value that was read, with its
	// revision, and returns the configuration that is to be used, in JSON: of that value or, if it is refused, of the
	// last good one.
	Reading() func(value []byte, rev int64) (use []byte)
	// Wrote takes over a value of Sign that was written at a revision.
	Wrote(value []byte, rev int64)
	// SignRequest returns the value of an operator's request.
	SignRequest(request json.RawMessage) (value json.RawMessage, err error)
	// Request is called with the value of an operator's request, its revision and the epoch that were read, AFTER the
	// configuration of the same read was judged. It returns the request that is to be carried out; nil: none is. Then
	// stale means that it is genuine, but was written under another configuration than it was made for: it may be made
	// again.
	Request(value []byte, rev int64, epoch ag.Epoch) (use json.RawMessage, stale bool)
	RecordEndorser
}

// RecordEndorser signs the parts of the record, "epoch" and "state". The values that it gets and returns begin with
// their place in the history of their key.
type RecordEndorser interface {
	// SignRecord returns the signature of a value; nil: none is written.
	SignRecord(part string, placed []byte) (signature []byte, err error)
	// Record returns why the value that was read is not to be used. Only the first of placed has the place where it was
	// read; the signature may be of any of them.
	Record(part string, signature []byte, placed ...[]byte) error
	// SignAgain returns another signature of a value that is used; nil: the one that it has is good.
	SignAgain(part string, signature []byte, placed ...[]byte) []byte
	// Good returns the last value whose signature was good; nil: none is known.
	Good(part string) (placed []byte)
}

// Snapshot is everything below the group's prefix that its members act on, as of one revision.
type Snapshot struct {
	Record   ag.Record
	Group    ag.Group
	GroupRev int64
	Op       json.RawMessage // the operator's request, nil when there is none
	OpRev    int64
	OpStale  bool   // it is not carried out, since the configuration changed while it was made: it may be made again
	Store    uint64 // which store answered: etcd's cluster id
	StoreRev int64  // its revision, which never goes back in a correct store
	From     string // the endpoint that answered
	Statuses map[ag.ReplicaID]json.RawMessage
}

// Change names the keys of the record that a Commit writes; nil leaves a key alone.
type Change struct {
	Epoch *ag.EpochRecord
	State *ag.State
	Lead  *ag.Lead

	Group  int64        // compared: the revision of the configuration; 0: it is not
	Votes  []ag.Vote    // compared: each key must be at the revision of the vote
	Vote   *ag.Vote     // written as the vote of its member
	Unvote ag.ReplicaID // whose vote is removed, if there is one; removing it makes void any write of it still under way
}

// Event has the kinds of key that changed. It is a hint to read again, never a fact to act on. Keys that are written
// often come with their values, so that a receiver can ignore a write that changes nothing of interest.
type Event struct {
	Record  bool // epoch, state or a vote; lead, if it was deleted or cannot be read
	Group   bool // the configuration
	Op      bool // the operator's request
	Status  bool // a status report was removed, or there are too many
	Renewal *Renewal
	Reports map[ag.ReplicaID]json.RawMessage // new status reports, the newest of each replica
}

// Renewal is a write of /lead.
type Renewal struct {
	Rev  int64 // its modification revision
	Lead ag.Lead
}

// Empty reports whether nothing changed.
func (e Event) Empty() bool {
	return !e.Record && !e.Group && !e.Op && !e.Status && e.Renewal == nil && len(e.Reports) == 0
}

// add merges a later event into e.
func (e *Event) add(x Event) {
	e.Record, e.Group, e.Op, e.Status = e.Record || x.Record, e.Group || x.Group, e.Op || x.Op, e.Status || x.Status
	if x.Renewal != nil {
		e.Renewal = x.Renewal
	}
	if e.Reports == nil && len(x.Reports) > 0 {
		e.Reports = make(map[ag.ReplicaID]json.RawMessage, len(x.Reports))
	}
	maps.Copy(e.Reports, x.Reports)
	if len(e.Reports) > maxStatuses { // in names that no group has: what is of use is read
		e.Status, e.Reports = true, nil
	}
}

// Token is a join token. Its maker defines Value; the store guarantees that it is consumed once.
type Token struct {
	ID      string          `json:"id"`
	Value   json.RawMessage `json:"value,omitempty"`
	Expires time.Time       `json:"expires"`
	Used    bool            `json:"used,omitempty"`
}

// MemberInfo is a member of the quorum as the quorum lists it.
type MemberInfo struct {
	ID       uint64
	Name     string // empty until the member has started once
	PeerURLs []string
	Learner  bool
}
