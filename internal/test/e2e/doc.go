// Package e2e holds the tests of the whole: real nodes with real servers in a lab, a writer that keeps a ledger of its
// acknowledged rows, and faults.
//
// No package imports it. It must not know how a node works. It uses the operator's and the client's means only: the
// commands, their exit codes, the status, the logs, the directories and the rows. Start reading at TestEndToEnd.
package e2e
