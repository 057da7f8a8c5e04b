// Package progress counts how far a copy has come and estimates the time that is left, and keeps the rate of reading within a limit.
//
// It must not know what is copied. Start reading at Progress and Watcher; Pacer limits the rate.
package progress
