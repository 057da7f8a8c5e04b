// Package pagesum computes the values that distinguish pages of PostgreSQL: their own checksums, and the hashes by
// which the two ends of a copy compare them.
//
// It reads memory only. Start reading at Check and Hash. The checksum has an implementation in assembly for processors
// with AVX2.
package pagesum
