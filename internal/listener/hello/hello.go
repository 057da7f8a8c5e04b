package hello

import (
	"cmp"
	"encoding/binary"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/giveback"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// ClientAddr is the setting with the client's address. No view of the server lists it.
const ClientAddr = "coterie.client_addr"

// Moves is in the packet of a session whose listener takes it back. With outlives the listener also has it
// outlive its server: it hears of the loss by the end of the stream alone.
const (
	Moves    = "coterie.moves"
	tls      = "coterie.tls"
	intent   = "coterie.intent"
	reads    = "coterie.reads"
	replica  = "coterie.replica"
	outlives = "coterie.outlives"
)

// Hello is a session as its startup packet describes it.
type Hello struct {
	User, Database string // the client's own settings; Parameters does not return them
	Replicates     bool   // it is a session of logical replication: as they

	ClientAddr, TLS string
	Intent          ag.Intent
	Reads           startup.Reads
	Moves           bool // its listener takes it back
	Outlives        bool // and has it outlive its server
}

// Parameters returns what is added to the packet of a session on that replica.
func (h Hello) Parameters(id ag.ReplicaID) []pgwire.Parameter {
	list := []pgwire.Parameter{
		{Name: ClientAddr, Value: h.ClientAddr},
		{Name: tls, Value: h.TLS},
		{Name: intent, Value: string(h.Intent)},
		{Name: reads, Value: string(cmp.Or(h.Reads, startup.ReadsLease))},
		{Name: replica, Value: string(id)},
	}
	if h.Moves {
		list = append(list, pgwire.Parameter{Name: Moves, Value: giveback.Version})
	}
	if h.Outlives {
		list = append(list, pgwire.Parameter{Name: outlives, Value: giveback.Version})
	}
	return list
}

// Read returns the session that a startup packet describes, which is given without its length. Only a listener sends
// packets of this form.
func Read(packet []byte) (h Hello, bad *pgwire.Error) {
	if binary.BigEndian.Uint32(packet) != pgwire.Protocol3 {
		return h, malformed()
	}
	params, bad := pgwire.SplitParameters(packet[4:])
	if bad != nil {
		return h, bad
	}
	seen := make(map[string]bool)
	for _, p := range params {
		name := strings.ToLower(p.Name)
		if seen[name] || name == "options" || name == "replication" && p.Value != "database" && p.Value != "true" {
			return h, malformed()
		}
		seen[name] = true
		switch name {
		case "user":
			h.User = p.Value
		case "replication":
			h.Replicates = p.Value == "database"
		case "database":
			h.Database = p.Value
		case ClientAddr:
			h.ClientAddr = p.Value
		case tls:
			h.TLS = p.Value
		case intent:
			h.Intent = ag.Intent(p.Value)
		case Moves:
			h.Moves = p.Value == giveback.Version
		case outlives:
			h.Outlives = p.Value == giveback.Version
		case reads:
			h.Reads = startup.Reads(p.Value)
		}
	}
	return h, nil
}

// Check refuses a session that lacks a part.
func (h Hello) Check() *pgwire.Error {
	if h.User == "" || h.Intent != ag.ReadWrite && h.Intent != ag.ReadOnly {
		return malformed()
	}
	return nil
}

func malformed() *pgwire.Error {
	return pgwire.Fatal("malformed", pgwire.StateProtocolViolation, "not a session of a listener")
}
