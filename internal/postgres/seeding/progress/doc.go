// Package progress counts the progress of a copy, estimates the remaining time, and keeps the rate of reading within a
// limit.
//
// It must not know the contents of the copy. Start reading at Progress and Watcher; Pacer limits the rate.
package progress
