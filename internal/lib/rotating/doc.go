// Package rotating is a log file that does not grow without end: when it is large, it becomes the youngest of a few old
// ones, and a new one is begun.
//
// It owns the names and the number of the files. It must not know the lines. Start reading at File.
package rotating
