package api

import "time"

// Bounds for connections to the HTTP port, which takes requests from any client. One that sends nothing ends after
// idleHTTP. A newcomer that finds no place takes the oldest one of its own address, or of the address with the most, or
// is closed at once; see admission.Places.
const (
	maxHTTPConns  = 256
	eachHTTPConns = 64 // of one address
	graceHTTP     = time.Second
	idleHTTP      = 10 * time.Second
)
