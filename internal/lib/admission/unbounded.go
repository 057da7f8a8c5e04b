//go:build coterie_unbounded

package admission

// unbounded: see bounded.go.
const unbounded = true
