package bluegreen

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/postgres/session"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// Pair is the two clusters: blue serves, and green follows it.
type Pair struct {
	// Back: green was left for blue, and follows it since then, by slots that were made on blue when it had everything.
	Back bool
	// Keep: on the way there green is to keep for the way back what is written to it once it has everything.
	Keep      bool
	Blue      func(ctx context.Context, database string) (*pgx.Conn, error) // a session of the superuser; "": in a database that always exists
	Sockets   string                                                        // the directory of blue's socket
	Install   programs.Install                                              // green's programs
	Data      string                                                        // green's directory
	Work      string                                                        // a private directory with a short path, for green's socket
	HBA       string                                                        // the file with green's rules while it is filled
	LogFile   string                                                        // of green's server until it has taken blue's place
	Superuser string
	Logger    *slog.Logger

	over   atomic.Bool // the replication has ended
	mu     sync.Mutex
	held   Held
	errors map[string]workerErrors // by database
	exit   chan struct{}           // closed when green's server has ended; nil: it was not started
	proc   *os.Process
}

// The waits for green's server.
const (
	startsWithin = time.Minute
	endsWithin   = 30 * time.Second
)

// Green opens a session of the superuser on green; "": in a database that always exists.
func (p *Pair) Green(ctx context.Context, database string) (*pgx.Conn, error) {
	server := session.Server{SocketDir: p.Work, Superuser: p.Superuser, Major: p.Install.Major}
	return server.Connect(ctx, func(c *pgx.ConnConfig) {
		if database != "" {
			c.Database = database
		}
	})
}

// Start starts green's server for a number of databases. It ends with this process at the latest.
func (p *Pair) Start(ctx context.Context, databases int) error {
	log, err := os.OpenFile(p.LogFile, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	workers := 4*databases + 4
	if p.Back {
		workers = databases + 4
	}
	args := []string{"-D", p.Data}
	set := map[string]string{
		"hba_file": p.HBA, "listen_addresses": "", "unix_socket_directories": settings.QuoteList(p.Work), "unix_socket_permissions": "0700", "port": strconv.Itoa(session.Port),
		"archive_mode": "off", "synchronous_standby_names": "", "default_transaction_read_only": "off", "huge_pages": "try", "restore_command": "", "ssl": "off",
		"max_logical_replication_workers": strconv.Itoa(workers), "max_worker_processes": strconv.Itoa(workers + 16),
		"max_replication_slots": strconv.Itoa(max(20, workers)), "wal_writer_delay": "10ms", "logging_collector": "off", "log_destination": "stderr",
		"max_sync_workers_per_subscription": "2", "wal_retrieve_retry_interval": "500ms",
	}
	if p.Back { // the memory is that of the server that serves; a standby of it pauses where this number was higher
		set["shared_buffers"] = "128MB"
		delete(set, "max_worker_processes")
	}
	if p.Install.Major >= 17 {
		set["summarize_wal"], set["sync_replication_slots"] = "off", "off"
	}
	if p.Install.Major >= 18 {
		set["max_active_replication_origins"] = set["max_replication_slots"]
	}
	for name, value := range set {
		args = append(args, "-c", name+"="+value)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(p.Install.BinDir, "postgres"), args...) // it outlives this call
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = programs.ToolEnv(), p.Work, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGQUIT}
	began, exit := make(chan error, 1), make(chan struct{})
	go func() { // ends with the server
		runtime.LockOSThread() // the server ends with its parent's thread
		err := cmd.Start()
		began <- err
		if err == nil {
			_ = cmd.Wait()
		}
		close(exit)
	}()
	if err := <-began; err != nil {
		return fmt.Errorf("start the server of the new cluster: %w", err)
	}
	p.mu.Lock()
	p.exit, p.proc = exit, cmd.Process
	p.mu.Unlock()
	return p.answers(ctx)
}

func (p *Pair) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startsWithin)
	defer cancel()
	for {
		conn, err := p.Green(ctx, "")
		if err == nil {
			return conn.Close(ctx)
		}
		if !p.Runs() {
			return fmt.Errorf("the server of the new cluster does not start: %s", p.said())
		}
		if retry.Sleep(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("the server of the new cluster does not answer: %w", err)
		}
	}
}

// said is the end of green's log.
func (p *Pair) said() string {
	b, err := os.ReadFile(p.LogFile)
	if err != nil {
		return err.Error()
	}
	return programs.LastText(b)
}

// Runs reports whether green's server runs.
func (p *Pair) Runs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit == nil {
		return false
	}
	select {
	case <-p.exit:
		return false
	default:
		return true
	}
}

// End ends green's server, in order if orderly and it does so in time. Without a server it does nothing.
func (p *Pair) End(orderly bool) error {
	p.mu.Lock()
	exit, proc := p.exit, p.proc
	p.mu.Unlock()
	if exit == nil {
		return nil
	}
	signals := []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL}
	if !orderly {
		signals = signals[1:]
	}
	for k, s := range signals {
		_ = proc.Signal(s)
		select {
		case <-exit:
			if orderly && k > 0 {
				return errors.New("the server of the new cluster did not end in order")
			}
			return nil
		case <-time.After(endsWithin):
		}
	}
	return errors.New("the server of the new cluster does not end")
}

// opener opens a session of the superuser on one of the clusters; "": in a database that always exists.
type opener func(ctx context.Context, database string) (*pgx.Conn, error)

// in runs f in a session on one of the clusters.
func in(ctx context.Context, open opener, database string, f func(*pgx.Conn) error) error {
	conn, err := open(ctx, database)
	if err != nil {
		return fmt.Errorf("database %s: %w", database, err)
	}
	defer session.Close(conn)
	if err := f(conn); err != nil {
		return fmt.Errorf("database %s: %w", database, err)
	}
	return nil
}

// Databases lists the databases whose rows are copied: those that take connections.
func (p *Pair) Databases(ctx context.Context) ([]string, error) { return databases(ctx, p.Blue) }

func databases(ctx context.Context, open opener) (names []string, err error) {
	err = in(ctx, open, "", func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, "SELECT datname::text FROM pg_database WHERE datallowconn ORDER BY 1")
		if err == nil {
			names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		return err
	})
	return names, err
}
