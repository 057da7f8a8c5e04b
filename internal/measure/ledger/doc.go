// Package ledger is a client-side account of every row that was sent and of what the server answered.
//
// It owns the facts that a client can know of a server from outside: which rows were acknowledged, when, and on which
// timeline. It also knows whether every acknowledged row is still present, and how long no row was acknowledged. The
// connections it uses are in package session.
//
// It must not know how a group works: the same ledger measures peers in the same way, and a mistake of the product
// cannot hide in its own yardstick.
//
// Start reading at Ledger, then Ledger.Verify.
package ledger
