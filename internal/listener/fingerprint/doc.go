// Package fingerprint asks the local server whether a new session of a role in a database would be as one before it:
// for the fingerprint of that login, many at once on a session of its own.
//
// It must not know clients or backends, or what is done with an answer.
package fingerprint
