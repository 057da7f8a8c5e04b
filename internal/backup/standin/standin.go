package standin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/backup"
)

// prefix begins the names of the directories of sockets; a process that is killed leaves one behind.
const prefix = "backup-"

// socketName is the name that libpq gives the socket of the port 5432.
const socketName = ".s.PGSQL.5432"

// maxStatement bounds what pgBackRest sends.
const maxStatement = 64 << 10

// ErrLags is the failure of a backup of a secondary that does not come to where the backup begins within the limit.
var ErrLags = errors.New("this node has not replayed in time to where the backup begins")

// errPromoted means that this node's server is no secondary's any more.
var errPromoted = errors.New("the server of this node was promoted during the backup")

// errGone means that the backup that was begun at the primary has ended there.
var errGone = errors.New("the primary is not in this backup any more: another replica leads, its server or its agent was restarted, or it heard nothing of this node for too long")

// Config is what a Standin needs.
type Config struct {
	Run     string                                                                     // a private directory with a short path, in which the socket's is made
	Connect func(ctx context.Context) (*pgx.Conn, error)                               // a session of the superuser on this node's server
	Primary func(ctx context.Context, r backup.StepRequest) (backup.StepAnswer, error) // does a step at the primary
	User    int                                                                        // whose processes are answered: the tool's
	Waiting func(lsn string)                                                           // called where the backup waits until this node has replayed to there
	// ReplayLimit is how long that may take.
	ReplayLimit time.Duration
	Renew       time.Duration // how often the primary hears of this node; 0: a quarter of backup.Silence
}

// Standin answers in the primary's name. Make it with Listen.
type Standin struct {
	Config
	dir      string
	listener net.Listener
	failed   func(error) // called with the first error of a step, which is the end of the backup
	local    *pgx.Conn   // of the connection that is served

	mu     sync.Mutex
	window string // guarded by mu
}

// Listen opens the socket. failed is called if the backup cannot succeed any more; the caller ends the tool then.
func Listen(ctx context.Context, c Config, failed func(error)) (*Standin, error) {
	if c.Renew <= 0 {
		c.Renew = backup.Silence / 4
	}
	removeLeft(ctx, c.Run)
	dir, err := os.MkdirTemp(c.Run, prefix)
	if err != nil {
		return nil, fmt.Errorf("a socket for the backup: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", filepath.Join(dir, socketName))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("a socket for the backup: %w", err), os.RemoveAll(dir))
	}
	return &Standin{Config: c, dir: dir, listener: l, failed: failed}, nil
}

// removeLeft removes the directories of sockets that nobody listens at.
func removeLeft(ctx context.Context, run string) {
	all, _ := filepath.Glob(filepath.Join(run, prefix+"*")) // the pattern is sound
	for _, dir := range all {
		c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", filepath.Join(dir, socketName))
		if err == nil {
			_ = c.Close()
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			_ = os.RemoveAll(dir) // the next one tries again
		}
	}
}

// Dir returns the directory of the socket.
func (s *Standin) Dir() string { return s.dir }

// Serve answers one connection after the other until ctx is done, then closes the window and removes the socket.
func (s *Standin) Serve(ctx context.Context) {
	defer func() { _ = os.RemoveAll(s.dir) }()
	stop := context.AfterFunc(ctx, func() { _ = s.listener.Close() })
	defer stop()
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return
		}
		if s.owns(c) {
			s.serve(ctx, c)
		}
		_ = c.Close()
	}
}

// owns reports whether the process at the other end is the tool's user's.
func (s *Standin) owns(c net.Conn) bool {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	var cred *syscall.Ucred
	var inner error
	err = raw.Control(func(fd uintptr) {
		cred, inner = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	return err == nil && inner == nil && int(cred.Uid) == s.User
}

// serve answers the statements of one connection.
func (s *Standin) serve(ctx context.Context, c net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	b := pgproto3.NewBackend(c, c)
	b.SetMaxBodyLen(maxStatement)
	m, err := b.ReceiveStartupMessage()
	if _, ok := m.(*pgproto3.StartupMessage); err != nil || !ok {
		return // a look whether somebody listens, or a request to cancel
	}
	if err := s.enter(ctx); err != nil {
		s.failed(err)
		b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "08006", Message: err.Error()})
		_ = b.Flush()
		return
	}
	defer s.leave(ctx)
	var renewing sync.WaitGroup
	defer renewing.Wait()
	defer cancel()
	renewing.Go(func() { s.renew(ctx) })
	for _, m := range []pgproto3.BackendMessage{
		&pgproto3.AuthenticationOk{}, &pgproto3.ParameterStatus{Name: "server_version", Value: s.local.PgConn().ParameterStatus("server_version")},
		&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"}, &pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"},
		&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}},
	} {
		b.Send(m)
	}
	for {
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if b.Flush() != nil {
			return
		}
		m, err := b.Receive()
		if err != nil {
			return
		}
		q, ok := m.(*pgproto3.Query)
		if !ok {
			return // Terminate, or what pgBackRest does not send
		}
		for _, m := range s.answer(ctx, q.String) {
			b.Send(m)
		}
	}
}

// enter opens the sessions behind a connection: here, and the window at the primary.
func (s *Standin) enter(ctx context.Context) error {
	var err error
	if s.local, err = s.Connect(ctx); err != nil {
		return err
	}
	a, err := s.Primary(ctx, backup.StepRequest{Step: backup.Open})
	if err != nil {
		closed(s.local)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.window = a.Window
	return nil
}

// leave closes what enter has opened.
func (s *Standin) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = s.step(ctx, backup.Close) // else the primary ends it after a silence
	closed(s.local)
}

// step does a step in the window.
func (s *Standin) step(ctx context.Context, step backup.Step) (backup.StepAnswer, error) {
	s.mu.Lock()
	id := s.window
	s.mu.Unlock()
	return s.Primary(ctx, backup.StepRequest{Step: step, Window: id})
}

// renew has the primary hear of this node until ctx is done. A primary that has given the backup up ends it; one that
// is not reached gets about as long as it would wait itself.
func (s *Standin) renew(ctx context.Context) {
	t := time.NewTicker(s.Renew)
	defer t.Stop()
	for heard := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		c, cancel := context.WithTimeout(ctx, s.Renew)
		a, err := s.step(c, backup.Keep)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && a.Gone:
			s.failed(errGone)
			return
		case err == nil:
			heard = time.Now()
		case time.Since(heard) > 3*s.Renew:
			s.failed(err)
			return
		}
	}
}

// answer returns what the primary's server would answer to a statement.
func (s *Standin) answer(ctx context.Context, statement string) []pgproto3.BackendMessage {
	r := ruleFor(statement)
	switch {
	case r == nil:
		err := fmt.Errorf("this version of pgBackRest asks the primary something that coterie does not know: %.200q; make the backup on the primary (AUTOMATED_BACKUP_PREFERENCE = PRIMARY)", statement)
		s.failed(err)
		return refused(err)
	case r.do == nil:
		return s.ask(ctx, statement)
	}
	out, err := r.do(ctx, s)
	if err != nil {
		if ctx.Err() == nil {
			s.failed(err)
		}
		return refused(err)
	}
	return out.messages()
}

// ask asks this node's server.
func (s *Standin) ask(ctx context.Context, statement string) (out []pgproto3.BackendMessage) {
	all, err := s.local.PgConn().Exec(ctx, statement).ReadAll()
	if err != nil {
		if said := (*pgconn.PgError)(nil); !errors.As(err, &said) || s.local.IsClosed() {
			err = fmt.Errorf("the server of this node went away during the backup: %w", err)
			s.failed(err)
		}
		return refused(err)
	}
	for _, r := range all {
		if len(r.FieldDescriptions) > 0 {
			out = append(out, description(r))
		}
		for _, row := range r.Rows {
			out = append(out, &pgproto3.DataRow{Values: row})
		}
		out = append(out, &pgproto3.CommandComplete{CommandTag: []byte(r.CommandTag.String())})
	}
	return out
}

func description(r *pgconn.Result) *pgproto3.RowDescription {
	d := &pgproto3.RowDescription{}
	for _, f := range r.FieldDescriptions {
		d.Fields = append(d.Fields, pgproto3.FieldDescription{Name: []byte(f.Name), DataTypeOID: f.DataTypeOID, DataTypeSize: f.DataTypeSize, TypeModifier: f.TypeModifier})
	}
	return d
}

func refused(err error) []pgproto3.BackendMessage {
	return []pgproto3.BackendMessage{&pgproto3.ErrorResponse{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "55000", Message: err.Error()}}
}

func closed(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the session ends either way
}
