// Package availability judges a group from what one node knows of it: whether it takes writes, whether commits are
// acknowledged, which failures it survives now, and what is wrong.
//
// It owns the answer that status, check, the health checks, the metrics, the views and the policies print, so that all
// of them say the same. It has no rules of its own about failures: it asks ag.Decide and ag.NextSync what the members
// that are left would do (forecast.go). It is pure: no clock, no I/O. It must not know how the facts were gathered.
//
// Start reading at Assess.
package availability
