// Package pgtest runs a throw-away PostgreSQL server for the tests of the instruments.
//
// It owns one data directory under /tmp, its private socket and its postmaster, and leaves none of them behind. It must not
// know anything of Coterie: the instruments are proven against a plain server. Start reading at New.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
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
	cmd      *exec.Cmd
	exited   chan struct{}
}

// New makes a cluster and starts it. fsync is off.
func New() (*Server, error) {
	bins, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is well formed
	if len(bins) == 0 {
		return nil, ErrNoServer
	}
	slices.Sort(bins)
	dir, err := os.MkdirTemp("/tmp", "cb")
	if err != nil {
		return nil, err
	}
	s := &Server{bin: filepath.Dir(bins[len(bins)-1]), dir: dir, name: "only"}
	return s.make("initdb", "--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--pgdata="+s.data())
}

// Replica makes a streaming replica of s, with cluster_name copy, and starts it.
func (s *Server) Replica() (*Server, error) {
	dir, err := os.MkdirTemp("/tmp", "cb")
	if err != nil {
		return nil, err
	}
	r := &Server{bin: s.bin, dir: dir, name: "copy"}
	return r.make("pg_basebackup", "--no-sync", "--checkpoint=fast", "--write-recovery-conf", "--username=postgres",
		"--host="+s.dir, "--pgdata="+r.data())
}

// make fills the data directory by a command and starts the server.
func (s *Server) make(command string, args ...string) (*Server, error) {
	if err := s.fill(command, args...); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	if err := s.Start(); err != nil {
		return nil, errors.Join(err, s.Remove())
	}
	return s, nil
}

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
	cmd := exec.Command(filepath.Join(s.bin, command), args...) //nolint:noctx // ends by itself
	cmd.Dir, cmd.SysProcAttr = s.dir, attr
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, out)
	}
	return nil
}

func (s *Server) data() string { return filepath.Join(s.dir, "d") }

// as says which user the server runs as: PostgreSQL refuses root. The child dies with this process.
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
func (s *Server) DSN() string { return "postgres://postgres@/postgres?host=" + s.dir }

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
	s.cmd.Dir, s.cmd.SysProcAttr, s.cmd.Stdout, s.cmd.Stderr = s.dir, attr, log, log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) { _ = cmd.Wait(); close(exited) }(s.cmd, s.exited) // end waits for it
	return s.await()
}

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
