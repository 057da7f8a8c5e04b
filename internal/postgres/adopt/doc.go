// Package adopt takes an existing, cleanly stopped PostgreSQL cluster under management in place, and gives it back.
//
// It owns finding the cluster (Debian's split layout included), every check that must pass before anything is written,
// and the report. It also owns the changes outside the node directory, with the record that undoes them. It must not
// know the group, how a server is started, or the grammar of the listener's rules: those come in as functions.
//
// Start reading at Find, Inspect and Take.
package adopt
