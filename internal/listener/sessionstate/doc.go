// Package sessionstate follows what a client's requests make of the state of its session, as far as the server does not
// tell it when it is asked: the names of settings that no view lists, and the use of what no view shows at all.
//
// It looks at words of the client's texts and knows no grammar. It must not know sessions or sockets.
package sessionstate
