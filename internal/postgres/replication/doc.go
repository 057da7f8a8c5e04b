// Package replication carries PostgreSQL's replication connections between a secondary's walreceiver and the primary's
// walsender, through the agents of both nodes.
//
// It owns the unix socket a walreceiver connects to (Upstream), the walsender connections of a primary (Downstream),
// and the handshake between the two (Hello, Answer). It also owns the parts of the replication protocol that the sync
// bookkeeping needs: reading flush positions, holding feedback back, and proving that a walsender works with the
// settings in force. It knows the PostgreSQL protocol. It must not know TLS, the quorum store, or which member should
// be primary: it is given a dial function, accepted connections and the epoch.
//
// Start reading at Upstream, then Downstream.Handle, then stream.go.
package replication
