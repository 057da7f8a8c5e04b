// Package storage tells what a directory stands on: a mirror of md, LVM, ZFS or btrfs, or a device without a second
// copy; how each side of the mirror is, and whether one is being filled again.
//
// It owns the formats of the kernel's files and of the tools' output, and the findings with what to do. It changes
// nothing, and knows neither nodes nor PostgreSQL. A look reads files of /proc and /sys. Tools are run only for facts
// that these do not have, at most once in a while, with a limit of time and of output. Start reading at Reader.Look.
package storage
