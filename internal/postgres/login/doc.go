// Package login reads the facts that the authentication of a client needs from a running server: roles with their
// verifiers, the defaults of a session, and the fingerprint. The fingerprint changes when a new session would begin
// differently.
//
// It only reads. Start reading at Roles.
package login
