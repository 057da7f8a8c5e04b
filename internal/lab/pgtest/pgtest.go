// Package pgtest runs a throw-away PostgreSQL server for the tests of the instruments.
//
// It owns one data directory under /tmp, its private socket and its postmaster, and leaves none of them behind. It must
// not know anything of Coterie: the instruments are proven against a plain server. Start reading at New.
package pgtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoServer means that this machine has no PostgreSQL to test with.
var ErrNoServer = errors.New("no PostgreSQL server binaries found in /usr/lib/postgresql/*/bin")

// Server is a PostgreSQL server that only this process uses.
type Server struct {
	bin, dir string
	name     string // its cluster_name
	o        Options
	cmd      *exec.Cmd
	exited   chan struct{}
}

// Options are what a server starts with in addition to the defaults.
type Options struct {
	Settings []string                 // name=value
	Port     int                      // among Settings, too; 0: 5432
	In       func(func() error) error // calls its argument where the server is to be started; nil: here
	Trust    bool                     // every user may connect, also for replication, and by TCP
}

// New makes a cluster and starts it. fsync is off.
func New() (*Server, error) { return NewWith(Options{}) }

// NewWith is New with options.
func NewWith(o Options) (*Server, error) {
	bins, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is well formed
	if len(bins) == 0 {
		return nil, ErrNoServer
	}
	slices.Sort(bins)
	dir, err := os.MkdirTemp("/tmp", "cb")
	if err != nil {
		return nil, err
	}
	s := &Server{bin: filepath.Dir(bins[len(bins)-1]), dir: dir, name: "only", o: o}
	return s.make("initdb", "--no-sync", "--auth=trust", "--data-checksums", "--username=postgres", "--encoding=UTF8", "--locale=C", "--pgdata="+s.data())
}

// Replica makes a streaming replica of s, with cluster_name copy, and starts it.
func (s *Server) Replica() (*Server, error) { return s.ReplicaWith(Options{}) }

// ReplicaWith is Replica with options.
func (s *Server) ReplicaWith(o Options) (*Server, error) {
	dir, err := os.MkdirTemp("/tmp", "cb")
	if err != nil {
		return nil, err
	}
	r := &Server{bin: s.bin, dir: dir, name: "copy", o: o}
	return r.make("pg_basebackup", "--no-sync", "--checkpoint=fast", "--write-recovery-conf", "--username=postgres",
		"--host="+s.dir, "--port="+s.port(), "--pgdata="+r.data())
}

// make fills the data directory by a command and starts the server.
func (s *Server) make(command string, args ...string) (*Server, error) {
	if err := s.fill(command, args...); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	if s.o.Trust {
		if err := s.trust(); err != nil {
			return nil, errors.Join(err, s.Remove())
		}
	}
	if err := s.Start(); err != nil {
		return nil, errors.Join(err, s.Remove())
	}
	return s, nil
}

func (s *Server) trust() error {
	f, err := os.OpenFile(filepath.Join(s.data(), "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString("host all all all trust\nhost replication all all trust\n")
	return errors.Join(err, f.Close())
}

func (s *Server) port() string { return strconv.Itoa(cmp.Or(s.o.Port, 5432)) }

func (s *Server) fill(command string, args ...string) error {
	attr, err := s.as()
	if err != nil {
		return err
	}
	if c := attr.Credential; c != nil {
		if err := os.Chown(s.dir, int(c.Uid), int(c.Gid)); err != nil {
			return err
		}
	}
	cmd := exec.Command(filepath.Join(s.bin, command), args...) //nolint:noctx // ends without help
	cmd.Dir, cmd.SysProcAttr = s.dir, attr
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, out)
	}
	return nil
}

func (s *Server) data() string { return filepath.Join(s.dir, "d") }

// as returns the user that the server runs as: PostgreSQL refuses root. The child dies with this process.
func (s *Server) as() (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Geteuid() != 0 {
		return attr, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attr, errors.Join(err1, err2)
}

// DSN returns the URI of the server's private socket.
func (s *Server) DSN() string {
	return "postgres://postgres@/postgres?port=" + s.port() + "&host=" + s.dir
}

// Data returns the data directory.
func (s *Server) Data() string { return s.data() }

// Bin returns the directory of the server's programs.
func (s *Server) Bin() string { return s.bin }

// Command prepares a program of PostgreSQL, to be run as the server's user.
func (s *Server) Command(name string, args ...string) (*exec.Cmd, error) {
	attr, err := s.as()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(s.bin, name), args...) //nolint:noctx // the caller decides how long it runs
	cmd.Dir, cmd.SysProcAttr = s.dir, attr
	return cmd, nil
}

// Dir returns the socket's directory.
func (s *Server) Dir() string { return s.dir }

// Start starts a stopped server and waits until it lets clients in.
func (s *Server) Start() error {
	attr, err := s.as()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()                                                  // the child has its own
	s.cmd = exec.Command(filepath.Join(s.bin, "postgres"), "-D", s.data(), "-k", s.dir, //nolint:noctx // Stop and Kill end it
		"-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=128MB", "-c", "max_wal_size=2GB",
		"-c", "cluster_name="+s.name, "-c", "autovacuum_naptime=5s")
	for _, setting := range s.o.Settings {
		s.cmd.Args = append(s.cmd.Args, "-c", setting)
	}
	s.cmd.Dir, s.cmd.SysProcAttr, s.cmd.Stdout, s.cmd.Stderr = s.dir, attr, log, log
	in := s.o.In
	if in == nil {
		in = lasting
	}
	if err := in(s.cmd.Start); err != nil {
		return err
	}
	s.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) { _ = cmd.Wait(); close(exited) }(s.cmd, s.exited) // end waits for it
	return s.await()
}

// lasting runs f on a thread that lives as long as the process: the kernel sends the signal of a parent's death when
// the thread that started the child ends.
func lasting(f func() error) error {
	err := make(chan error)
	thread() <- func() { err <- f() }
	return <-err
}

var thread = sync.OnceValue(func() chan<- func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range calls {
			f()
		}
	}()
	return calls
})

func (s *Server) await() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.DSN())
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.exited:
			out, _ := os.ReadFile(filepath.Join(s.dir, "log")) // best effort: it explains the failure
			return fmt.Errorf("postgres ended: %s", out)
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Crash stops the server at once, without a checkpoint, and waits for its end.
func (s *Server) Crash() error { return s.end(syscall.SIGQUIT) }

func (s *Server) end(sig syscall.Signal) error {
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-s.exited:
		return nil
	case <-time.After(time.Minute):
		return errors.Join(errors.New("postgres did not end within a minute"), s.cmd.Process.Kill())
	}
}

// Remove ends the server and removes all it had.
func (s *Server) Remove() error {
	var err error
	if s.exited != nil {
		err = s.end(syscall.SIGQUIT)
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}
