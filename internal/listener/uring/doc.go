// Package uring writes to many sockets in one system call, through an io_uring of its own.
//
// It must not know what is written or why.
package uring
