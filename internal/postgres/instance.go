package postgres

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
)

// Config says where an instance lives. Everything in it is fixed for the life of an Instance.
type Config struct {
	Install     Install
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
	cfg  Config
	log  *slog.Logger
	main *session // observation and settings
	auth *session // Verifier, so that a login never waits behind an observation
	repl *session // IDENTIFY_SYSTEM; open only where that may say something new
	wal  *session // CurrentFlush, for which a client waits

	replays  atomic.Pointer[replayed]
	logMarks atomic.Pointer[map[string]int64] // how long the logs were before the last start
}

// New returns the instance described by c. It touches nothing.
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
	i := &Instance{cfg: c, log: log}
	i.main, i.auth, i.repl, i.wal = newSession(i), newSession(i), newReplSession(i), newSession(i)
	return i
}

// Close ends the instance's permanent sessions. The server is not affected.
func (i *Instance) Close() error {
	return errors.Join(i.main.close(), i.auth.close(), i.repl.close(), i.wal.close())
}

// Config returns what New was given, with its defaults filled in.
func (i *Instance) Config() Config { return i.cfg }

// Binary returns the path of the server's executable, to be run with Args.
func (i *Instance) Binary() string { return i.bin("postgres") }

func (i *Instance) bin(name string) string { return filepath.Join(i.cfg.Install.BinDir, name) }

func (i *Instance) path(elem ...string) string {
	return filepath.Join(append([]string{i.cfg.PGData}, elem...)...)
}

func exists(path string) bool {
	_, err := os.Lstat(path) //nolint:gosec // the administrator says where PostgreSQL is
	return err == nil
}
