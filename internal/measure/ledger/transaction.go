package ledger

import (
	"cmp"

	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/measure/session"
)

// Row is a row of the ledger that a transaction of the caller's own inserts, beside whatever else it does.
type Row struct {
	Run     string
	Client  int
	Seq     int64
	Payload []byte
}

// Insert inserts a Row: its parameters are the fields of Row, in their order.
const Insert = `insert into coterie_ledger.entry (run, client, seq, payload) values ($1, $2, $3, $4)`

// Next notes that a transaction is about to insert the client's next row, and returns the row. A row is sent at most
// once: the caller that runs a transaction again takes another row. Clients must not be those of a Write.
func (l *Ledger) Next(client int) (Row, error) {
	r := record{op: opIntend, at: boottime.Now(), client: client, seq: l.nextSeq(client)}
	row := Row{Run: l.run, Client: client, Seq: r.seq, Payload: payload(l.run, client, r.seq)}
	return row, l.note(r)
}

// Conclude notes what became of the row's transaction. It does not wait for the disk, as Write does: the account is as
// durable as this process.
func (l *Ledger) Conclude(row Row, outcome session.Outcome, state string) error {
	r := record{op: opOf[outcome], at: boottime.Now(), client: row.Client, seq: row.Seq, state: cmp.Or(state, "none"), lsn: "-"}
	l.journal.add(r.String())
	return l.apply(r)
}
