// Package endorsement signs the group's configuration, its record and the requests of operators, and decides which of
// them in the quorum's store are used. Every member of the store can write them, and a witness too, which may be
// stolen. A replica signs with the authority's key, which a witness does not have (decision 101).
//
// It owns the form of a signed value, the rules by which one follows another, and the way from groups whose programs
// did not sign. A witness has a replica write its own part of the configuration (Service.Tell). The package must not
// know what a configuration means.
//
// Start reading at Judge.
package endorsement
