// Package e2e holds the tests of the whole: real nodes with real servers in a lab, a writer that keeps a ledger of what
// was acknowledged to it, and faults.
//
// No package imports it. It must not know how a node works: it sees what an operator and a client see, which is
// the commands, their exit codes, the status, the logs, the directories and the rows. Start reading at TestEndToEnd.
package e2e
