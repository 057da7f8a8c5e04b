// Package continuity moves a session from one server to another: what is asked of the old backend, whether the session
// can be moved, and with which requests it is made again on the new one.
//
// The state is read from the server right before the move, and again from the new backend afterwards: a session whose
// states differ is not moved. The package speaks the protocol to a backend and knows no sockets, sessions or routes.
package continuity
