// Package etcd keeps the agreed record of an availability group in etcd, and changes it by compare-and-swap.
//
// It owns the keys below /coterie/v1/<group-uuid>/ with their encoding, and the client that changes them so that the
// outcome of every change is known (Store). External is the dialer for an etcd that an administrator runs; package
// embedded runs a member in the agent's process.
//
// It must not know what a record means: it compares revisions, and never decides which member leads. It opens no
// connection to a node itself, since Dial is given to it, and it does not know PostgreSQL.
//
// Start reading at Store.Read and Store.Commit in record.go, then attempt.go for what happens when an answer is lost.
package etcd
