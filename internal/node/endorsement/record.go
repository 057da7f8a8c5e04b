package endorsement

import (
	"bytes"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// The parts of the record are signed where they stand: package etcd makes the place of a value in the history of its
// key a part of what is signed. So a Judge compares no numbers here. A part that is refused is not replaced by the last
// good one in memory, as a configuration is: (V, k) of before could promise too much. The record is unreadable then.

// recordPart is what a Judge knows of a part of the record.
type recordPart struct {
	used []byte // the one in use, with its place
	good bool   // its signature was verified, or that of an earlier authority was

	// The fields below are for the question whether this node's authority signed it.
	signature []byte
	by        string // pin of the authority
	own       bool
}

// records is what a Judge knows of the record.
type records struct {
	parts    map[string]*recordPart
	lastGood map[string][]byte // by part, with its place
	refused  refusal
	count    uint64 // different values refused, one after the other
}

// recordPurpose returns the purpose of the signature of a part of the record.
func recordPurpose(part string) string { return "record: " + part }

// SignRecord implements etcd.RecordEndorser. A witness writes no part of the record.
func (j *Judge) SignRecord(part string, placed []byte) ([]byte, error) {
	ca := j.keys.CA()
	if ca != nil {
		return ca.Endorse(recordPurpose(part), placed)
	}
	if last, _, _ := j.state(); last.SignedRecord {
		return nil, fail.Refusedf("a witness does not hold the authority's key, which signs the record")
	}
	return nil, nil
}

// Record implements etcd.RecordEndorser. Until the configuration says signed_record, everything is used.
func (j *Judge) Record(part string, signature []byte, placed ...[]byte) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := j.records.parts[part]
	if p == nil {
		p = &recordPart{}
		j.records.parts[part] = p
	}
	if p.good && bytes.Equal(p.used, placed[0]) {
		if !p.known(j.keys.CA(), signature) {
			p.own = j.own(part, signature, placed)
			p.note(j.keys.CA(), signature)
		}
		return nil
	}
	own, err := j.own(part, signature, placed), error(nil)
	if !own {
		err = j.endorsed(part, signature, placed)
	}
	if err != nil && j.last.SignedRecord {
		j.refuseRecord(part, placed[0], err)
		return err
	}
	p.used, p.good, p.own = bytes.Clone(placed[0]), err == nil, own
	p.note(j.keys.CA(), signature)
	if p.good {
		j.records.lastGood[part] = p.used
	}
	return nil
}

// own reports whether the authority of this node has signed a part of the record.
func (j *Judge) own(part string, signature []byte, placed [][]byte) bool {
	ca := j.keys.CA()
	return ca != nil && slices.ContainsFunc(placed, func(b []byte) bool { return ca.Endorsed(recordPurpose(part), b, signature) })
}

// endorsed returns why no authority that this node trusts has signed a part of the record.
func (j *Judge) endorsed(part string, signature []byte, placed [][]byte) error {
	err := errUnsigned
	for _, b := range placed {
		if len(signature) > 0 && err != nil {
			err = j.keys.Identity().Endorsed(recordPurpose(part), b, signature)
		}
	}
	return err
}

// known reports whether it was found out already if this authority made the signature. A witness does not ask.
func (p *recordPart) known(ca *certs.CA, signature []byte) bool {
	return ca == nil || p.by == ca.Pin() && bytes.Equal(p.signature, signature)
}

func (p *recordPart) note(ca *certs.CA, signature []byte) {
	if ca != nil {
		p.signature, p.by = bytes.Clone(signature), ca.Pin()
	}
}

// SignAgain implements etcd.RecordEndorser.
func (j *Judge) SignAgain(part string, signature []byte, placed ...[]byte) []byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	p, ca := j.records.parts[part], j.keys.CA()
	if p == nil || ca == nil || !bytes.Equal(p.used, placed[0]) || !p.good && j.last.SignedRecord || j.own(part, signature, placed) {
		return nil
	}
	again, err := ca.Endorse(recordPurpose(part), placed[0])
	if err != nil {
		return nil
	}
	return again
}

// Good implements etcd.RecordEndorser.
func (j *Judge) Good(part string) []byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.records.lastGood[part]
}

func (j *Judge) refuseRecord(part string, placed []byte, why error) {
	r, now := &j.records, time.Now()
	if r.refused.why != nil && bytes.Equal(r.refused.value, placed) {
		r.refused.at = now
		return
	}
	quiet := r.refused.why != nil && now.Sub(r.refused.at) < logEvery
	r.refused = refusal{value: bytes.Clone(placed), why: why, at: now}
	r.count++
	if !quiet {
		j.log.Error("the record in the quorum's store is refused, and nobody is promoted by it: it was loaded from elsewhere, or a witness may be stolen; coterie member remove it then", "part", part, "why", why)
	}
}

// recordState returns whether every part of the record that was read last has a good signature, and whether one lacks
// that of this node's own authority.
func (j *Judge) recordState() (signed, stale bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	signed = len(j.records.parts) > 0
	for _, p := range j.records.parts {
		signed, stale = signed && p.good, stale || !p.own
	}
	return signed, stale && j.keys.CA() != nil
}

// refusedRecord returns the part of the record that was refused last, and how many were.
func (j *Judge) refusedRecord() (refusal, uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.records.refused, j.records.count
}
