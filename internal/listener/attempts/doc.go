// Package attempts holds the questions and openings that are under way on a replica, so that the end of the replica's
// role or of its epoch ends them: nothing is opened under an epoch that is over.
//
// It must not know who is to get the session, or what becomes of one that is open.
package attempts
