// Package node is the composition root of one running agent: it opens every part of a node in order and closes them in
// reverse.
//
// It decides nothing: package ag decides and package agent acts. It is the only package that imports more than one
// adapter.
//
// Start reading at Run.
package node
