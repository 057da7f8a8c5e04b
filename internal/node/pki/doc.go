// Package pki is this node's part in the group's certificates. It owns the node's identity and its renewal, the
// certificates that a replica signs for other members, and the node's part in a rotation of the group's authority.
//
// It must not know the node: the agent, the quorum and the listener come as functions in Config. The files and the
// cryptography are package certs'.
//
// Start reading at Service.
package pki
