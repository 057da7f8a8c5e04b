// Package endpoint is a node's one port towards the other nodes of its group: mutually authenticated TLS 1.3, on which the
// negotiated protocol (ALPN) chooses a class of stream.
//
// It owns the group's certificate authority and the nodes' certificates (pki.go, node.go), the listening and the dialling
// side of every stream between nodes (endpoint.go, serve.go, conn.go), remote calls (control.go), and the one-time tokens
// with which a new node joins (token.go, join.go).
//
// It must not know what flows through a stream: no PostgreSQL, no etcd, no record. Who may open what is decided by the
// Authorize callback, what is done with an accepted stream by the Handlers.
//
// Start reading at Config, then Endpoint.Serve and Endpoint.Dial.
package endpoint
