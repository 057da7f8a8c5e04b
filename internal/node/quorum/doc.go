// Package quorum is this node's part in the group's quorum: its embedded etcd member and the disk below it, or the external etcd that an
// administrator runs instead, and the store on it as the agent wants it.
//
// It must not know the node: the agent, the endpoint and the certificates come as functions in Config. What the record in the store means
// is decided by package ag; how it is written safely is decided by package etcd.
//
// Start reading at Service.
package quorum
