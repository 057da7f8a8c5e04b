// Package datadir knows which entries of a data directory belong to a copy, and the names of the entries with a meaning
// of their own.
//
// Both ends use it: the source to list its files, the target to check such a list before it acts on it. Start reading
// at Lister and CheckList.
package datadir
