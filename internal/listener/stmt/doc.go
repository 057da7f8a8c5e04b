// Package stmt classifies a statement by its first words, and by its command tag: whether it can commit, and whether it
// leaves anything in the session. It also gives the outcome of requests that were not answered.
//
// It knows tokens and no grammar. A statement that it does not know counts as the worst one. It must not know sessions
// or sockets.
package stmt
