// Package hello is what a listener tells of a session in its startup packet, beside the client's own settings: to the
// listener of the node with the server, and to the server's views.
//
// It must not know how a session is opened, or whether it may be.
package hello
