// Package layout holds the tests that keep the tree in the shape ARCHITECTURE.md describes: which folder may import
// which, how many files a package has, and how long files, functions and parameter lists are. It also checks the words
// and the width of comments, as far as a program can.
//
// The rules are by folder, so that a new package is covered on the day it is made. Today's exceptions are listed in
// testdata/exceptions.txt. That list may only shrink: "go test ./internal/test/layout -update" lowers numbers and
// removes lines, and never raises or adds one.
package layout
