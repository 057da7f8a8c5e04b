// Package certs is the identity of a node and the authority that vouches for it: certificates, keys, their renewal, and
// the rotation of the authority.
//
// It owns the files of a node's pki directory and the order in which they are written. It must not know connections,
// tokens, nor which nodes are members of the group: its configuration decides that.
//
// Start reading at Node in node.go, then CA in authority.go, then trust.go for a rotation and Renewer in renew.go.
package certs
