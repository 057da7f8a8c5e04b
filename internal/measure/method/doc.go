// Package method runs and judges benchmarks. It has load in a closed or an open loop, latency from the intended start,
// and arms that take turns in balanced blocks. A comparison may have the verdict that no difference was shown.
//
// It owns the arithmetic and the clock of a measurement, and nothing else: an operation is the Worker's own. It must
// not know PostgreSQL.
//
// Start reading at Compare, then Run.
package method
