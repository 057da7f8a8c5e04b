// Package encryption is what comes before a client's startup packet: its requests for encryption, and the TLS handshake
// with the certificates of both sides. No byte that arrived in clear is taken for one that arrived through TLS.
//
// It must not know what the packet says, or who the client is.
package encryption
