// Package method is how benchmarks are run and judged: load in a closed or an open loop, latency from the intended
// start, arms that take turns in balanced blocks, and a comparison whose verdict may be that no difference was shown.
//
// It owns the arithmetic and the clock of a measurement, and nothing else: what an operation is, Worker knows. It must
// not know PostgreSQL.
//
// Start reading at Compare, then Run.
package method
