// Package stmt tells what a statement can do from its first words, and from its command tag: whether it can commit, whether it
// leaves anything in the session, and what became of requests that were not answered.
//
// It knows tokens and no grammar. It takes a statement that it does not know for the worst one. It must not know sessions or
// sockets.
package stmt
