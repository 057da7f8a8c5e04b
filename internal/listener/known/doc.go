// Package known is what a client's node knows of the state of a session that may outlive its server: the last answer of
// the server, whether the client's texts may have changed that state since, and when the server is to be asked again.
// Pure: bytes, answers and times in, a decision out.
//
// It must not know how a session is asked, or what is done with its state.
package known
