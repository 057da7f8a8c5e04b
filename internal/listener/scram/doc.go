// Package scram is the server's side of SCRAM-SHA-256 and SCRAM-SHA-256-PLUS (RFC 5802, RFC 7677), on the verifiers
// that PostgreSQL stores.
//
// It must not know roles or connections: messages are strings, and the certificate's hash is a parameter.
package scram
