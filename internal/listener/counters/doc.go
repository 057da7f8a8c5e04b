// Package counters is what a listener tells of itself: what it counts since its start, and its sessions as status and
// views show them.
//
// It must not know why something happened: the caller gives the reason under which it is counted.
package counters
