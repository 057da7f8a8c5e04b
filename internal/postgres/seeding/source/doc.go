// Package source serves verified copies of this node's server. It keeps the backup windows, lists and reads the files,
// and answers the questions of targets. It also verifies the page checksums of a running server.
//
// It must not know how connections are made or why a copy is wanted. Start reading at Source.Serve, then window.enter
// and chunkServer.chunk.
package source
