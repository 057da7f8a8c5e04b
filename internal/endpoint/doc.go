// Package endpoint is a node's one port towards the other nodes of its group: mutually authenticated TLS 1.3, on which
// the negotiated protocol (ALPN) chooses a class of stream.
//
// It owns the listening and the dialling side of every stream between nodes (endpoint.go, serve.go, conn.go), remote
// calls (control.go), and the one-time tokens with which a new node joins (token.go, join.go). Package certs, below it,
// owns the group's certificate authority and the nodes' certificates.
//
// It must not know the content of a stream: no PostgreSQL, no etcd, no record. The Authorize callback decides which
// member may open a class of stream, and the Handlers serve the accepted streams.
//
// Start reading at Config, then Endpoint.Serve and Endpoint.Dial.
package endpoint
