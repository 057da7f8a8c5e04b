// Package link is one byte stream in each direction between two nodes that outlives the connections which carry it.
//
// A link (Conn) is made of legs: authenticated connections of one transport or another. Bytes travel in numbered
// frames, encoded by a codec. The sender keeps a frame until the other side has it, so that legs may come, go, fail and
// overtake each other; the reader gets the written bytes once and in order. On a lossy path, short frames travel on two
// legs and longer ones as shards (shard.go).
//
// It owns the frames, the choice of the main leg, the resending, and the measuring of round trip and loss. It must not
// know what the bytes mean, nor how a leg is authenticated: the caller of Hub.Handle has done that.
//
// Start reading at Conn, then Dial and Hub.Handle, then choose.go.
package link
