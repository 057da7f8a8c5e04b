package api

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// maxBody is the maximum size of a request in bytes. maxAnswer is the maximum duration of an administrator's request.
const (
	maxBody   = 2 << 20 // the longest script, and what JSON adds to it
	maxAnswer = 30 * time.Minute
)

// Server serves a Node.
type Server struct {
	m      Node
	log    *slog.Logger
	places *admission.Places // of connections to the HTTP port
}

// NewServer returns a server; ServeAdmin and ServeHTTP run it.
func NewServer(m Node, log *slog.Logger) *Server {
	return &Server{m, log, admission.NewPlaces(maxHTTPConns, eachHTTPConns, graceHTTP)}
}

// Refused returns how many connections to the HTTP port were refused for want of a place.
func (s *Server) Refused() uint64 { return s.places.Refused() }

// ServeAdmin serves everything on a private Unix socket until ctx is done. A user who can open the socket may
// administer: the socket has mode 0600, and the peer must run as this process's user or as root.
func (s *Server) ServeAdmin(ctx context.Context, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return errors.Join(err, l.Close())
	}
	mux := http.NewServeMux()
	s.readPaths(mux)
	mux.HandleFunc("GET /api/v1/status", func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, s.m.Status()) })
	mux.HandleFunc("GET /api/v1/explain", func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, s.m.Explain()) })
	handle(mux, "POST /api/v1/failover", func(ctx context.Context, r FailoverRequest) (any, error) { return s.m.Failover(ctx, r) })
	handle(mux, "POST /api/v1/restart", func(ctx context.Context, r RestartRequest) (any, error) { return nil, s.m.Restart(ctx, r) })
	handle(mux, "POST /api/v1/programs", func(ctx context.Context, _ struct{}) (any, error) { return s.m.Programs(ctx) })
	handle(mux, "POST /api/v1/restart-agent", func(ctx context.Context, r AgentRequest) (any, error) { return nil, s.m.RestartAgent(ctx, r) })
	handle(mux, "POST /api/v1/major", func(ctx context.Context, r MajorRequest) (any, error) { return s.m.Major(ctx, r) })
	handle(mux, "POST /api/v1/token", func(ctx context.Context, r TokenRequest) (any, error) { return s.m.CreateToken(ctx, r) })
	handle(mux, "POST /api/v1/authority/rotate", func(ctx context.Context, r RotateRequest) (any, error) { return s.m.RotateAuthority(ctx, r) })
	handle(mux, "POST /api/v1/remove", func(ctx context.Context, id ag.ReplicaID) (any, error) { return nil, s.m.Remove(ctx, id) })
	handle(mux, "POST /api/v1/replace", func(ctx context.Context, r ReplaceRequest) (any, error) { return s.m.Replace(ctx, r) })
	handle(mux, "POST /api/v1/leave", func(ctx context.Context, _ struct{}) (any, error) { return nil, s.m.Leave(ctx) })
	handle(mux, "POST /api/v1/resume", func(ctx context.Context, id ag.ReplicaID) (any, error) { return nil, s.m.Resume(ctx, id) })
	handle(mux, "POST /api/v1/trust", func(ctx context.Context, id ag.ReplicaID) (any, error) { return s.m.Trust(ctx, id) })
	handle(mux, "POST /api/v1/seed", func(ctx context.Context, r SeedRequest) (any, error) { return s.m.Seed(ctx, r) })
	handle(mux, "POST /api/v1/seed/cancel", func(ctx context.Context, id ag.ReplicaID) (any, error) { return s.m.CancelSeeding(ctx, id) })
	handle(mux, "POST /api/v1/seedings", func(ctx context.Context, id ag.ReplicaID) (any, error) { return s.m.Seedings(ctx, id) })
	handle(mux, "POST /api/v1/backup/step", func(ctx context.Context, r backup.StepRequest) (any, error) { return s.m.BackupStep(ctx, r) })
	handle(mux, "POST /api/v1/backup/run", func(ctx context.Context, r BackupRunRequest) (any, error) { return s.m.BackupRun(ctx, r) })
	handle(mux, "POST /api/v1/backup/activity", func(ctx context.Context, on ag.ReplicaID) (any, error) { return s.m.BackupActivity(ctx, on) })
	handle(mux, "POST /api/v1/link", func(ctx context.Context, r LinkRequest) (any, error) { return s.m.Link(ctx, r) })
	handle(mux, "POST /api/v1/settings", func(ctx context.Context, r SettingsRequest) (any, error) { return nil, s.m.Set(ctx, r) })
	mux.HandleFunc("POST /api/v1/sql", inSession(answer(func(ctx context.Context, text string) (any, error) { return s.m.SQL(ctx, text) })))
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile) // processor profiles, for administrators only
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)     // each wake-up of a goroutine, with its reason
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	return s.serve(ctx, ownUser{l}, mux, keptHTTP)
}

// ServeHTTP serves health checks, metrics and status until ctx is done. Nothing on this port changes anything, and
// nothing makes this node ask others: any stranger may call, as often as it likes.
func (s *Server) ServeHTTP(ctx context.Context, addr string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return s.serveHTTP(ctx, l)
}

func (s *Server) serveHTTP(ctx context.Context, l net.Listener) error {
	return s.serve(ctx, admission.Listener{Listener: l, Places: s.places}, s.open(), idleHTTP)
}

// open returns what the HTTP port answers.
func (s *Server) open() http.Handler {
	mux := http.NewServeMux()
	s.readPaths(mux)
	mux.HandleFunc("GET /api/v1/status", func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, public(s.m.Status())) })
	mux.HandleFunc("/", otherPaths)
	return mux
}

func (s *Server) serve(ctx context.Context, l net.Listener, h http.Handler, idle time.Duration) error {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 2 * time.Minute, IdleTimeout: idle,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), BaseContext: func(net.Listener) context.Context { return ctx }, ConnContext: withHeld,
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// public returns the status without the directories and processes of this host.
func public(st Status) Status {
	st.Replicas, st.Uptime = slices.Clone(st.Replicas), 0
	for i := range st.Replicas {
		st.Replicas[i].Local = nil
	}
	return st
}

func (s *Server) readPaths(mux *http.ServeMux) {
	mux.HandleFunc("GET /api/v1/decisions", func(w http.ResponseWriter, _ *http.Request) { write(w, http.StatusOK, s.m.Decisions()) })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) { s.m.Metrics().ServeHTTP(w, r) })
	s.healthChecks(mux)
	s.patroniPaths(mux)
}

func (s Status) self() Replica {
	if r, ok := s.Replica(s.Node); ok {
		return r
	}
	return Replica{Name: s.Node, Role: ag.RoleResolving}
}

func handle[T any](mux *http.ServeMux, pattern string, f func(context.Context, T) (any, error)) {
	mux.HandleFunc(pattern, answer(f))
}

// answer returns what answers a request of an administrator whose document is a T.
func answer[T any](f func(context.Context, T) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// A request of an administrator may take as long as a checkpoint. The socket is private, so slow clients are no
		// attack.
		rc := http.NewResponseController(w)
		if err := errors.Join(rc.SetReadDeadline(time.Time{}), rc.SetWriteDeadline(time.Now().Add(maxAnswer))); err != nil {
			write(w, http.StatusInternalServerError, failure{Kind: fail.Ordinary, Message: err.Error()})
			return
		}
		var in T
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&in); err != nil {
			write(w, http.StatusBadRequest, failure{Kind: fail.Usage, Message: err.Error()})
			return
		}
		out, err := f(r.Context(), in)
		if err != nil {
			code, e := refusal(err)
			write(w, code, e)
			return
		}
		write(w, http.StatusOK, out)
	}
}

// refusal returns the HTTP status and the document of an error. The document of an error with a kind has the text of
// that error, without the errors that wrap it.
func refusal(err error) (int, failure) {
	var known fail.Error
	if errors.As(err, &known) {
		return http.StatusConflict, failure{known.Kind, known.Number, known.Error()}
	}
	return http.StatusInternalServerError, failure{Kind: fail.Ordinary, Message: err.Error()}
}

func write(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // it fails only if the client has gone
}

// ownUser accepts only connections of this process's user and of root.
type ownUser struct{ net.Listener }

func (l ownUser) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if uid, err := peerUser(c); err == nil && (uid == 0 || uid == os.Getuid()) {
			return c, nil
		}
		_ = c.Close()
	}
}

func peerUser(c net.Conn) (int, error) {
	cred, err := peerOf(c)
	if err != nil {
		return 0, err
	}
	return int(cred.Uid), nil
}

// peerOf returns the process at the other end of a Unix connection.
func peerOf(c net.Conn) (*syscall.Ucred, error) {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *syscall.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, credErr
}
