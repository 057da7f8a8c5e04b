// Package adminsocket lets root into the servers of a lab as their superuser.
//
// It owns the sockets that root uses and the directory they are in. It must not know what is asked on them.
//
// Start reading at Sockets.
package adminsocket

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lib/unixuser"
)

// Sockets are the administrators' sockets of a lab. A server's private socket accepts the user that runs it and, from
// PostgreSQL 16 on, no other user. Root therefore has a socket of its own for each server, behind which a thread
// connects as that user. Any other user is given the server's own socket.
type Sockets struct {
	root      string // directory of the sockets; empty: none are needed
	lab       *lab.Lab
	listeners []net.Listener
	running   sync.WaitGroup
}

// socketName is what libpq looks for in a socket directory.
const socketName = ".s.PGSQL.5432"

// Open makes the sockets that this user needs. The caller closes them.
func Open(l *lab.Lab) (*Sockets, error) {
	d := &Sockets{lab: l}
	if os.Getuid() != 0 {
		return d, nil
	}
	var err error
	if d.root, err = socketsDir(l.Dir()); err != nil {
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

// longestSocket is the longest directory of sockets. The kernel bounds the path of a socket (sun_path in linux/un.h,
// with its final zero), which also holds the names of the node and of the socket.
const longestSocket = 107 - 32 - len(socketName)

// socketsDir makes the directory of the sockets. It is in the directory of the lab and is removed with it, unless its
// name would be too long for a socket.
func socketsDir(home string) (string, error) {
	dir := filepath.Join(home, "doors")
	if len(dir) > longestSocket {
		return os.MkdirTemp("", "coterie-doors-")
	}
	return dir, os.Mkdir(dir, 0o700)
}

// Dir returns the socket directory that leads to the node's server.
func (d *Sockets) Dir(node string) string {
	if d.root != "" {
		return filepath.Join(d.root, node)
	}
	l, err := config.NewLayout(filepath.Join(d.lab.Dir(), node))
	if err != nil {
		return "/nonexistent"
	}
	return l.Sockets()
}

// Close ends the connections and removes the sockets.
func (d *Sockets) Close() {
	for _, l := range d.listeners {
		_ = l.Close()
	}
	d.running.Wait()
	if d.root != "" {
		_ = os.RemoveAll(d.root)
	}
}

func (d *Sockets) open(n lab.Node) error {
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
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", filepath.Join(d.Dir(n.Name), socketName))
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
			d.running.Go(func() { proxy(c, filepath.Join(layout.Sockets(), socketName), uid) })
		}
	})
	return nil
}

// proxy joins a client with the server's socket until either ends.
func proxy(client net.Conn, socket string, uid int) {
	defer func() { _ = client.Close() }()
	server, err := unixuser.Dial(socket, uid)
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
