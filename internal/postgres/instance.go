package postgres

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/diagnose"
	"github.com/coteriedb/coterie/internal/postgres/login"
	"github.com/coteriedb/coterie/internal/postgres/pgfiles"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/postgres/session"
)

// Config describes an instance. Only Replace changes it during the life of an Instance.
type Config struct {
	Install     programs.Install
	PGData      string
	ConfigFile  string            // postgresql.conf; "" when it is in PGData
	HBAFile     string            // the private pg_hba.conf; "" for StateDir/pg_hba.conf. pg_ident.conf is beside it
	SocketDir   string            // where the server listens: SocketDir/.s.PGSQL.5432
	UpstreamDir string            // where the walreceiver connects; the agent serves it
	StateDir    string            // fsynced marks of the node that must survive a rewind; outside PGData
	LogDir      string            // output of pg_rewind and of crash recovery before it; "" for none
	Superuser   string            // the bootstrap superuser; "" for postgres
	OSUser      string            // the operating-system user that runs agent and server; "" for the current one
	Slot        string            // primary_slot_name, as in cot_n2
	Logger      *slog.Logger      // nil discards
	Extra       map[string]string // further settings for the command line; the constants of Args win over them
}

// Instance is one PostgreSQL instance. Its methods are safe for concurrent use unless they say that the server must be
// stopped. Methods that talk to the server connect when needed and again after the server was restarted.
type Instance struct {
	*login.Roles     // for logins
	*Facts           // for the views
	*diagnose.Checks // for health

	cfg    atomic.Pointer[Config]
	log    *slog.Logger
	server session.Server
	main   *session.Session // observation and settings
	auth   *session.Session // of Roles and Facts, so that a login never waits behind an observation
	repl   *session.Session // IDENTIFY_SYSTEM; open only while that may tell something new
	wal    *session.Session // CurrentFlush, for which a client waits
	watch  *session.Session // Walsenders, ten times a second

	replays  atomic.Pointer[replayed]
	written  atomic.Pointer[writtenSync]
	wholeEnd wholeEnd
}

// New returns the instance described by c. It neither reads files nor connects.
func New(c Config) *Instance {
	if c.Superuser == "" {
		c.Superuser = "postgres"
	}
	if c.HBAFile == "" {
		c.HBAFile = filepath.Join(c.StateDir, "pg_hba.conf")
	}
	log := c.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	server := session.Server{SocketDir: c.SocketDir, Superuser: c.Superuser, Major: c.Install.Major, Later: new(atomic.Int32)}
	i := &Instance{
		log: log, server: server,
		main: session.New(server), auth: session.New(server), repl: session.NewReplication(server), wal: session.New(server), watch: session.New(server),
	}
	i.cfg.Store(&c)
	i.Roles, i.Facts, i.Checks = login.New(server, i.auth), newFacts(i.auth, i.Control), diagnose.New(server, c.PGData)
	return i
}

// Close ends the instance's permanent sessions. The server is not affected.
func (i *Instance) Close() error {
	return errors.Join(i.main.Close(), i.auth.Close(), i.repl.Close(), i.wal.Close(), i.watch.Close())
}

// Config returns what New was given, with its defaults filled in.
func (i *Instance) Config() Config { return *i.cfg.Load() }

// Replace has the instance be another cluster, of the same or a later version in another directory. The server of the
// one before has ended, and that of the other has not begun.
func (i *Instance) Replace(in programs.Install, data string) {
	c := i.Config()
	c.Install, c.PGData = in, data
	i.server.Later.Store(int32(in.Major))
	i.cfg.Store(&c)
	i.Checks.MoveTo(data)
	i.replays.Store(nil)
	i.written.Store(nil)
}

// Binary returns the path of the server's executable, to be run with Args.
func (i *Instance) Binary() string { return i.bin("postgres") }

func (i *Instance) bin(name string) string { return filepath.Join(i.Config().Install.BinDir, name) }

func (i *Instance) path(elem ...string) string {
	return filepath.Join(append([]string{i.Config().PGData}, elem...)...)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Session opens a session of the superuser, with the settings of the agent's own sessions, in a database that always
// exists. The caller closes it.
func (i *Instance) Session(ctx context.Context) (*pgx.Conn, error) { return i.server.Connect(ctx, nil) }

// SessionIn is Session in another database; "" for the one that always exists.
func (i *Instance) SessionIn(ctx context.Context, database string) (*pgx.Conn, error) {
	return i.server.Connect(ctx, func(c *pgx.ConnConfig) {
		if database != "" {
			c.Database = database
		}
	})
}

// Version returns the version of the server's binaries, as 15.18.
func (i *Instance) Version() string { return i.Config().Install.Version }

// SystemID reads the cluster's system identifier from pg_control, without running a program.
func (i *Instance) SystemID() (string, error) {
	f, err := os.Open(i.path("global", "pg_control"))
	if err != nil {
		return "", fmt.Errorf("read the system identifier: %w", err)
	}
	defer func() { _ = f.Close() }()
	var b [8]byte // the first member of ControlFileData, in the machine's order
	if _, err := io.ReadFull(f, b[:]); err != nil {
		return "", fmt.Errorf("read the system identifier: %w", err)
	}
	return strconv.FormatUint(binary.NativeEndian.Uint64(b[:]), 10), nil
}

// Control reads pg_control. The server may be running or stopped. A torn read of a running server's file is repeated.
func (i *Instance) Control(ctx context.Context) (pgfiles.Control, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for try := 0; ; try++ {
		cmd := exec.CommandContext(ctx, i.bin("pg_controldata"), "-D", i.Config().PGData)
		cmd.Env = programs.ToolEnv()
		out, err := cmd.Output()
		if err != nil {
			return pgfiles.Control{}, fmt.Errorf("read pg_control of %s: %w", i.Config().PGData, programs.WithStderr(err))
		}
		c, err := pgfiles.ParseControl(string(out))
		if err == nil || try == 4 {
			return c, err
		}
		if err := retry.Sleep(ctx, 20*time.Millisecond); err != nil {
			return pgfiles.Control{}, err
		}
	}
}
