// Package login answers what the authentication of a client asks of a running server: roles with their verifiers, the
// defaults of a session, and the fingerprint that tells whether a new session would begin differently.
//
// It only reads. Start reading at Roles.
package login
