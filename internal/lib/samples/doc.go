// Package samples keeps the values of series over time in memory of a fixed size: the last hour finely, and the last
// day coarsely.
//
// It owns the division of time into slots, and what becomes of values that share one or of time without any. It is
// pure: it reads no clock, and knows nothing of what the series mean. Start reading at Rings.
package samples
