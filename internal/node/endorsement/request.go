package endorsement

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// An operator's request, such as a forced failover, is signed as the configuration is. The signature binds it to the
// group, to the epoch, and to the number of the configuration for which it was made. It is void in any other epoch, and
// no node accepts it unless it was written while that configuration was in use. No clock takes part: the revisions of
// the store say which of the two was written first. A request that was accepted stays accepted while its key is not
// written again; written again, it was put back, and is refused.

// errPutBack refuses a request that was accepted before, at another revision of the store.
var errPutBack = errors.New("it was carried out or withdrawn before, and was put back")

// configurationError refuses a request that was written while another configuration was in use than it was signed for.
// It is no sign of a thief: a change may have come in between.
type configurationError struct{ signed, inUse uint64 }

func (e configurationError) Error() string {
	return fmt.Sprintf("it was made for configuration %d, and %d is in use: ask again", e.signed, e.inUse)
}

// request is the signed part of an operator's request.
type request struct {
	ag.Op
	Configuration uint64 `json:"configuration"` // the number of the one in use when it was signed
}

// requests are the operators' requests that a Judge has seen.
type requests struct {
	epoch    ag.Epoch
	accepted []accepted // in that epoch, oldest first
	value    []byte     // the last one accepted, as the store has it
	body     []byte     // what is signed of it
	rev      int64

	refused    refusal
	refusedRev int64
	count      uint64 // different ones refused, one after the other
}

// accepted is a request that was accepted, with the revision of the store at which it was written.
type accepted struct {
	id  string
	rev int64
}

// acceptedKept bounds how many accepted requests of one epoch are remembered.
const acceptedKept = 1024

// SignRequest implements etcd.Endorser. A witness cannot sign, and is refused once the group uses signed values only.
func (j *Judge) SignRequest(op json.RawMessage) (json.RawMessage, error) {
	var r request
	if err := json.Unmarshal(op, &r); err != nil {
		return nil, err
	}
	last, _, _ := j.state()
	ca := j.keys.CA()
	switch {
	case ca == nil && last.SignedOnly:
		return nil, fail.Refusedf("a witness does not hold the authority's key, which signs the request; run this on a replica")
	case ca == nil:
		return op, nil
	}
	r.Configuration = last.Serial
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	sig, err := ca.Endorse(certs.OperatorRequest, body)
	if err != nil {
		return nil, err
	}
	return join(body, sig), nil
}

// Request implements etcd.Endorser.
func (j *Judge) Request(value []byte, rev int64, epoch ag.Epoch) (use json.RawMessage, stale bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	q := &j.requests
	if !j.last.SignedOnly {
		return value, false
	}
	if epoch > q.epoch {
		q.epoch, q.accepted, q.value = epoch, nil, nil
	}
	if q.value != nil && q.rev == rev && bytes.Equal(q.value, value) {
		return q.body, false
	}
	body, err := j.openRequest(value, rev, epoch)
	if err != nil {
		j.refuseRequest(value, rev, err)
		return nil, errors.As(err, new(configurationError))
	}
	if body != nil {
		q.value, q.body, q.rev = bytes.Clone(value), body, rev
	}
	return body, false
}

// openRequest returns what is signed of a request that is to be carried out in an epoch; nil: it is of another epoch.
func (j *Judge) openRequest(value []byte, rev int64, epoch ag.Epoch) ([]byte, error) {
	q := &j.requests
	body, sig := split(value)
	var r request
	if err := json.Unmarshal(body, &r); err == nil && (r.Epoch != epoch || epoch < q.epoch) {
		return nil, nil
	}
	if sig == nil {
		return nil, errUnsigned
	}
	if err := j.keys.Identity().Endorsed(certs.OperatorRequest, body, sig); err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(q.accepted, func(a accepted) bool { return a.id == r.ID }); i >= 0 {
		if q.accepted[i].rev != rev {
			return nil, errPutBack
		}
		return body, nil
	}
	before := r.Configuration+1 == j.last.Serial && rev < j.last.rev // the change came after it, before this node read it
	if r.Configuration != j.last.Serial && !before {
		return nil, configurationError{r.Configuration, j.last.Serial}
	}
	q.accepted = append(q.accepted[max(0, len(q.accepted)-acceptedKept+1):], accepted{r.ID, rev})
	return body, nil
}

func (j *Judge) refuseRequest(value []byte, rev int64, why error) {
	q, now := &j.requests, time.Now()
	if q.refused.why != nil && q.refusedRev == rev && bytes.Equal(q.refused.value, value) {
		return
	}
	quiet := q.refused.why != nil && now.Sub(q.refused.at) < logEvery
	q.refused, q.refusedRev = refusal{value: bytes.Clone(value), why: why, at: now}, rev
	q.count++
	switch {
	case quiet:
	case errors.As(why, new(configurationError)):
		j.log.Warn("the operator's request in the quorum's store is not carried out", "why", why)
	default:
		j.log.Error("the operator's request in the quorum's store is refused: a witness may be stolen; coterie member remove it", "why", why)
	}
}

// refusedRequests returns the request that was refused last, and how many were.
func (j *Judge) refusedRequests() (refusal, uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.requests.refused, j.requests.count
}
