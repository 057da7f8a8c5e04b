// Package serverlog tells from the server's log whether a commit's wait for the synchronous secondaries was cancelled.
//
// PostgreSQL logs a cancelled wait before it sends anything to the client, and an ordinary role cannot turn that off.
// The log is a file in memory that the server appends to: its size says at once whether anything was logged. The
// package owns the reading of that file and the judgement of the settings under which the log can be relied on. It
// must not know sessions.
//
// Start reading at Reader. docs/internals/safety.md, "Answers in doubt", has the argument.
package serverlog
