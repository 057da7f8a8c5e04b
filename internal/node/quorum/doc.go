// Package quorum is this node's part in the group's quorum. It owns the embedded etcd member and the disk below it, or
// the connection to an external etcd that an administrator runs instead, and the store on it as the agent wants it.
//
// It must not know the node: the agent, the endpoint and the certificates come as functions in Config. Package ag
// decides the meaning of the record in the store; package etcd decides how it is written safely.
//
// Start reading at Service.
package quorum
