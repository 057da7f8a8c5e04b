// Package fileio reads and opens the files of a copy at either end: it keeps the last file open, and reads past the
// page cache what the cache does not have.
//
// It must not know the protocol or what the files mean. Start reading at Reader.
package fileio
