// Package maintenancecmd is coterie maintenance: automatic failover switched off for a while, or one replica out of
// routing.
//
// It owns the spelling of the command; the rules of maintenance are in package ag. Start reading at Maintenance.
package maintenancecmd
