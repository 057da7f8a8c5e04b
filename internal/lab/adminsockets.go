package lab

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"github.com/coteriedb/coterie/internal/config"
)

// AdminSockets let root into the servers of a lab as their superuser. A server's private socket lets in the user that runs it and, from
// PostgreSQL 16 on, nobody else; so root goes through a socket of its own, behind which a thread knocks as that user. For any
// other user the door is the server's own socket.
type AdminSockets struct {
	root      string // of the sockets; empty: none are needed
	lab       *Lab
	listeners []net.Listener
	running   sync.WaitGroup
}

const doorName = ".s.PGSQL.5432"

func OpenAdminSockets(l *Lab) (*AdminSockets, error) {
	d := &AdminSockets{lab: l}
	if os.Getuid() != 0 {
		return d, nil
	}
	var err error
	if d.root, err = doorsDir(l.Dir()); err != nil {
		return nil, err
	}
	for _, n := range l.Nodes() {
		if n.Witness {
			continue
		}
		if err := d.open(n); err != nil {
			d.Close()
			return nil, err
		}
	}
	return d, nil
}

// longestSocket is what the kernel takes as the path of a socket (sun_path in linux/un.h, with its final zero), less the name of a node
// and that of the socket.
const longestSocket = 107 - 32 - len(doorName)

// doorsDir makes the directory of the sockets in that of the lab, so that whoever removes the lab removes them; elsewhere if its name is too long.
func doorsDir(lab string) (string, error) {
	dir := filepath.Join(lab, "doors")
	if len(dir) > longestSocket {
		return os.MkdirTemp("", "coterie-doors-")
	}
	return dir, os.Mkdir(dir, 0o700)
}

// Dir is the socket directory that leads to the node's server.
func (d *AdminSockets) Dir(node string) string {
	if d.root != "" {
		return filepath.Join(d.root, node)
	}
	l, err := config.NewLayout(filepath.Join(d.lab.Dir(), node))
	if err != nil {
		return "/nonexistent"
	}
	return l.Sockets()
}

func (d *AdminSockets) Close() {
	for _, l := range d.listeners {
		_ = l.Close()
	}
	d.running.Wait()
	if d.root != "" {
		_ = os.RemoveAll(d.root)
	}
}

func (d *AdminSockets) open(n Node) error {
	if err := os.Mkdir(d.Dir(n.Name), 0o700); err != nil {
		return err
	}
	layout, err := config.NewLayout(n.Dir)
	if err != nil {
		return err
	}
	st, err := os.Stat(n.Dir)
	if err != nil {
		return err
	}
	uid := int(st.Sys().(*syscall.Stat_t).Uid)
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", filepath.Join(d.Dir(n.Name), doorName))
	if err != nil {
		return err
	}
	d.listeners = append(d.listeners, l)
	d.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d.running.Go(func() { pass(c, filepath.Join(layout.Sockets(), doorName), uid) })
		}
	})
	return nil
}

// pass joins a client with the server's socket until either ends.
func pass(client net.Conn, socket string, uid int) {
	defer func() { _ = client.Close() }()
	server, err := knock(socket, uid)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	var wg sync.WaitGroup
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		wg.Go(func() {
			_, _ = io.Copy(pair[0], pair[1]) // the end of either side is the end of both
			_ = pair[0].Close()
			_ = pair[1].Close()
		})
	}
	wg.Wait()
}

// knock connects as the user: a unix socket shows the server whose thread connected.
func knock(socket string, uid int) (net.Conn, error) {
	type answer struct {
		conn net.Conn
		err  error
	}
	got := make(chan answer)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and its user with it
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
			got <- answer{nil, e}
			return
		}
		c, err := dialHere(socket)
		got <- answer{c, err}
	}()
	a := <-got
	return a.conn, a.err
}

// dialHere connects on this very thread, which net.Dial does not promise.
func dialHere(socket string) (net.Conn, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), socket)
	defer func() { _ = f.Close() }() // FileConn has a descriptor of its own
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket}); err != nil {
		return nil, errors.Join(errors.New("connect to "+socket), err)
	}
	return net.FileConn(f)
}
