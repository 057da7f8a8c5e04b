// Package seeding fills a replica's data directory with a verified copy of the primary. Only a complete copy can ever
// be started.
//
// It is the target's end of the transfer: it requests chunks (stream.go), chooses their order (queue.go) and codec
// (chooser.go), and replaces lost connections (lines.go, control.go). It also keeps the history of operations
// (operation.go). Package source is the other end, wire is the protocol between them, and tree is the directory being
// filled. It must not know how connections are made or the group's decisions.
//
// DESIGN.md beside this file explains why a copy is valid. Start reading at Run, then seeder.round, then
// source.Source.Serve.
package seeding
