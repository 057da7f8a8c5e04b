// Package webhooks posts the events of a node to the receivers that its coterie.yaml names, signed as Standard Webhooks
// has it.
//
// It owns the signature, when a receiver is tried again, and the bounds of all that: for how long and how often, and
// how many events wait. One receiver delays no other one, and nothing of the node waits for any. It must not know what
// an event means.
//
// Start reading at Sender.
package webhooks
