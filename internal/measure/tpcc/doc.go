// Package tpcc is a TPC-C-derived workload: the database, the five transactions as server-side functions, terminals
// that run them through anything that ends, and the twelve consistency conditions.
//
// It is derived from TPC-C revision 5.11 and is not TPC-C: keying and thinking times only if asked for, no foreign
// keys, no audit. Its rate is reported as NOPM and transactions per second and is not comparable with a published tpmC.
//
// It must not know what serves the database: one server, a listener, or a replica of either.
//
// Start reading at Load and Run, then conditions.go.
package tpcc
