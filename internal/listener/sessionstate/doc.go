// Package sessionstate follows the part of a session's state that the server does not tell when it is asked, by the
// requests of its client: the names of settings that no view lists, and the use of features that no view shows.
//
// It looks at words of the client's texts and knows no grammar. It must not know sessions or sockets.
package sessionstate
