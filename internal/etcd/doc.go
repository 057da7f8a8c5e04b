// Package etcd keeps the agreed record of an availability group in etcd: an embedded member, and the record's
// compare-and-swap.
//
// It owns the life of the embedded member (Member), the keys below /coterie/v1/<group-uuid>/ with their encoding, and the
// client that changes them so that the outcome of every change is known (Store). Memory is the same store without etcd, for
// tests of its users.
//
// It must not know what a record means: it compares revisions, it never decides who leads. It opens no network connection
// to a node by itself (Dial is given to it; only etcd's own peer traffic dials, with the node's certificate), and it does not know
// PostgreSQL. External is the dialer where an administrator runs the etcd.
//
// Start reading at Store.Read and Store.Commit in record.go, then attempt.go for what happens when an answer is lost, then
// StartMember.
package etcd
