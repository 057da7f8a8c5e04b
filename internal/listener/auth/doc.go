// Package auth has a client prove who it is: by a password, by its certificate, or by its process.
//
// A role that does not exist is refused like a wrong password, and takes as long. The package must not know routes or
// sessions, or what a failure costs the client.
package auth
