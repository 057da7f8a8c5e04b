// Package tree is the data directory that a copy is made in, with the tablespaces beside it. It makes the directory
// unusable for a server, gives it the shape of a list of files, stores chunks, and makes the finished copy startable.
//
// It must not know the protocol beyond the list of files, nor the origin of chunks. Start reading at Prepare, then
// Tree.Shape, Tree.Store and Tree.Install: the rename in Install is the commit point of a copy.
package tree
