package replay

import "github.com/coteriedb/coterie/internal/lib/pgwire"

// Verdict is what an answer is, compared with the one that the client has got.
type Verdict int

// The verdicts.
const (
	Pending Verdict = iota // it has not ended
	Same
	Different
)

// maxAside is how many bytes of messages are kept for the client that do not belong to answers.
const maxAside = 64 << 10

// Run is the execution of a log on another server. A request is sent only after the answer to the one before it was
// found to be the same: so each is executed in the block that the first one has begun, and nothing is committed.
type Run struct {
	Aside []byte // messages for the client that do not belong to the answers: reported settings and notifications

	log    *Log
	at     int // requests that were sent
	frame  pgwire.Framer
	digest Digest
	failed bool
}

// Run begins the execution of the log, up to the last request that was answered. The log must not change meanwhile.
func (l *Log) Run() *Run { return &Run{log: l} }

// Next returns the next request to be sent; nil if there is none.
func (r *Run) Next() []byte {
	if r.failed || r.at >= len(r.log.sums) {
		return nil
	}
	r.at++
	return r.log.sent[r.log.end(r.at-1):r.log.end(r.at)]
}

// Requests returns how many requests were sent.
func (r *Run) Requests() int { return r.at }

// Feed takes bytes of the server. used is how many belong to the answer, all but those after its end.
func (r *Run) Feed(b []byte) (used int, v Verdict) {
	for used < len(b) && v == Pending {
		n, whole, err := r.frame.Next(b[used:])
		if err != nil {
			v = Different
			break
		}
		piece := b[used : used+n]
		used += n
		typ := r.frame.Type()
		if typ == 'A' || typ == 'S' {
			if r.Aside = append(r.Aside, piece...); len(r.Aside) > maxAside {
				v = Different
			}
		}
		if _, done := r.digest.Piece(typ, piece, whole); done {
			v = Different
			if r.at > 0 && r.digest.Take() == r.log.sums[r.at-1] {
				v = Same
			}
		}
	}
	r.failed = r.failed || v == Different
	return used, v
}
