// Package unixuser connects to Unix sockets as another user of this machine, as root may, and names users. A server
// that judges its clients by their credentials, as PostgreSQL's peer method does, sees that user.
package unixuser

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// Dial connects to the socket as the user. Only root may name a user other than its own; for everybody else the error
// is EPERM. The caller closes the connection.
func Dial(socket string, uid int) (net.Conn, error) {
	type answer struct {
		conn net.Conn
		err  error
	}
	got := make(chan answer)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its user with it
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
			got <- answer{nil, fmt.Errorf("become user %d: %w", uid, e)}
			return
		}
		c, err := dialHere(socket)
		got <- answer{c, err}
	}()
	a := <-got
	return a.conn, a.err
}

// dialHere connects on the calling thread. net.Dial does not promise that.
func dialHere(socket string) (net.Conn, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), filepath.Base(socket))
	defer func() { _ = f.Close() }() // FileConn has a descriptor of its own
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	return net.FileConn(f)
}
