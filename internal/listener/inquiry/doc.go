// Package inquiry asks the servers of sessions for their states: which sessions, when, and how many at once; where in
// the stream of a session the question may go; which bytes of the server are the answer; and whether a session with
// that state can be moved.
//
// It must not know sockets, who carries a session, or what is done with its state. Start reading at Session, then
// Inquirer.
package inquiry
