package endorsement

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// The reasons for which a value is refused, beside certs.ErrNotEndorsed.
var (
	errUnsigned = errors.New("it has no signature")
	errOlder    = errors.New("it is older than one that this node has seen")
)

// logEvery bounds how often refusals are logged while values come that are refused.
const logEvery = 10 * time.Second

// Keys are the keys of a node with which configurations are signed and verified. *pki.Service has them.
type Keys interface {
	CA() *certs.CA // nil on a witness
	Identity() *certs.Node
	TrustedCAs() string // names the authorities that the node trusts now
}

// Judge signs configurations, and decides which one is used of those that the store holds. It implements etcd.Endorser.
// It reads no file, and verifies a value once.
type Judge struct {
	keys Keys
	log  *slog.Logger

	mu      sync.Mutex
	last    configuration // the one in use
	turn    uint64        // grows with every other that comes into use
	refused refusal
	count   uint64 // different values refused, one after the other

	requests requests
	records  records
}

// configuration is a configuration that is used, or would be.
type configuration struct {
	value []byte // as the store has it; nil: it was read from the node's directory
	rev   int64  // of the store, at which this node saw it first; 0: none
	body  []byte // what is signed: the configuration in JSON
	facts
}

// facts are what a Judge knows of a configuration.
type facts struct {
	Serial       uint64       `json:"serial"`
	SignedOnly   bool         `json:"signed_only"`
	SignedRecord bool         `json:"signed_record"`
	Rotation     *ag.Rotation `json:"rotation"`
}

// refusal is the value that was refused last.
type refusal struct {
	value   []byte
	trusted string // the authorities by which it was judged
	why     error  // nil: none was refused
	at      time.Time
	stands  bool // the store holds it, as far as this node knows
}

// NewJudge returns a judge on a node that used the configuration g before. g is from the node's own directory, and was
// verified when it was written there.
func NewJudge(keys Keys, g ag.Group, log *slog.Logger) (*Judge, error) {
	body, err := json.Marshal(g)
	if err != nil {
		return nil, err
	}
	return &Judge{
		keys: keys, log: log, last: configuration{body: body, facts: facts{g.Serial, g.SignedOnly, g.SignedRecord, g.Rotation}},
		records: records{parts: map[string]*recordPart{}, lastGood: map[string][]byte{}},
	}, nil
}

// Sign implements etcd.Endorser. The configuration gets the next number. A witness cannot sign, and is refused once the
// group uses signed configurations only.
func (j *Judge) Sign(g ag.Group) ([]byte, error) {
	ca := j.keys.CA()
	j.mu.Lock()
	last := j.last
	j.mu.Unlock()
	if ca == nil {
		if last.SignedOnly {
			return nil, fail.Refusedf("a witness does not hold the authority's key, which signs the group's configuration; run this on a replica")
		}
		return json.Marshal(g)
	}
	g.Serial, g.SignedOnly, g.SignedRecord = max(g.Serial, last.Serial)+1, g.SignedOnly || last.SignedOnly, g.SignedRecord || last.SignedRecord
	body, err := json.Marshal(g)
	if err != nil {
		return nil, err
	}
	sig, err := ca.Endorse(certs.Configuration, body)
	if err != nil {
		return nil, err
	}
	return join(body, sig), nil
}

// Wrote implements etcd.Endorser: this node's own change counts before it is read again.
func (j *Judge) Wrote(value []byte, rev int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	next, err := j.open(value)
	if err == nil && next.body != nil && j.last.follows(next) == nil {
		j.use(next, rev)
	}
}

// Reading implements etcd.Endorser. A read of which the answer comes after another configuration has come into use may
// have been made before that: its value is not used, and not taken for one that was put back.
func (j *Judge) Reading() func(value []byte, rev int64) []byte {
	j.mu.Lock()
	began := j.turn
	j.mu.Unlock()
	return func(value []byte, rev int64) []byte {
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.decide(value, rev, began)
	}
}

func (j *Judge) decide(value []byte, rev int64, began uint64) []byte {
	if j.last.value != nil && bytes.Equal(value, j.last.value) {
		j.refused.stands = false
		return j.last.body
	}
	if r := j.refused; r.stands && bytes.Equal(value, r.value) && r.trusted == j.keys.TrustedCAs() {
		return j.last.body
	}
	trusted := j.keys.TrustedCAs() // before the value is verified
	next, err := j.open(value)
	if err == nil && next.body == nil {
		return value // unreadable, as the store will say
	}
	if err == nil {
		err = j.last.follows(next)
	}
	switch {
	case err == nil:
		j.use(next, rev)
	case began == j.turn:
		j.refuse(value, trusted, err)
	}
	return j.last.body
}

// open verifies the signature of a value, if it has one. The body is nil if the value is unsigned and unreadable.
func (j *Judge) open(value []byte) (configuration, error) {
	body, sig := split(value)
	c := configuration{value: bytes.Clone(value), body: body}
	if sig == nil && j.last.SignedOnly {
		return c, errUnsigned
	}
	if sig != nil {
		if err := j.keys.Identity().Endorsed(certs.Configuration, body, sig); err != nil {
			return c, err
		}
	}
	if err := json.Unmarshal(body, &c.facts); err != nil {
		return configuration{}, nil //nolint:nilerr // the store says what is wrong with it
	}
	return c, nil
}

// follows returns why another configuration may not come into use after this one. Before the group uses only signed
// ones, nodes of earlier versions write some that have no number, so that the numbers mean nothing.
func (c configuration) follows(next configuration) error {
	switch {
	case !c.SignedOnly || c.value == nil && next.SignedOnly && next.Serial == c.Serial: // from the directory: maybe coded otherwise
		return nil
	case !next.SignedOnly || c.SignedRecord && !next.SignedRecord || next.Serial < c.Serial:
		return errOlder // nothing takes either word back, also where the numbers begin anew
	case next.Serial == c.Serial:
		// Two replicas signed at the same moment, and the store took one. All members choose the same.
		x, y := sha256.Sum256(c.body), sha256.Sum256(next.body)
		if bytes.Compare(y[:], x[:]) < 0 {
			return errOlder
		}
	}
	return nil
}

func (j *Judge) use(next configuration, rev int64) {
	if next.SignedOnly && !j.last.SignedOnly {
		j.log.Info("from now on only signed configurations of the group are used", "serial", next.Serial)
	}
	next.rev = rev
	j.last = next
	j.turn++
	j.refused.stands = false
}

func (j *Judge) refuse(value []byte, trusted string, why error) {
	now := time.Now()
	quiet := j.refused.why != nil && now.Sub(j.refused.at) < logEvery
	j.refused = refusal{value: bytes.Clone(value), trusted: trusted, why: why, at: now, stands: true}
	j.count++
	if quiet {
		return
	}
	j.log.Error("the configuration in the quorum's store is refused, and the last good one stays in use: a witness may be stolen; coterie member remove it",
		"why", why, "serial", j.last.Serial)
}

// state returns what the judge knows at this moment.
func (j *Judge) state() (last configuration, refused refusal, count uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last, j.refused, j.count
}
