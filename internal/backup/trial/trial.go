// Package trial runs a PostgreSQL server on a restored data directory, for nobody but this process: until its recovery
// has ended, for a look at its data, or to make it fit for a new group.
//
// It owns how the server is started, watched and stopped. It must not know where the data comes from. Start reading at
// Start.
package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/backup/underway"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/session"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// Scratch begins the names of the directories of the servers' sockets and logs.
const Scratch = "coterie-trial-"

// stopLimit is how long an orderly end of the server may take, which writes a checkpoint.
const stopLimit = 5 * time.Minute

// Server is a server on a restored data directory. Make it with Start.
type Server struct {
	data, run string
	remove    func() error // removes run
	cmd       *exec.Cmd
	log       *os.File
	ended     chan error // the end of the postmaster, once
	session.Server
}

// marks are files of a group in a data directory: that of its copy, and that of its probes.
var marks = []string{"coterie.copy", "coterie.probe", "pg_wal/coterie.probe", "standby.signal"}

// Start starts a server on the data directory, and returns when its recovery has ended. It listens in a directory that
// only this user can enter, archives nothing and waits for nobody. each is told which segment it replays. Stop must be
// called afterwards, if there is no error.
func Start(ctx context.Context, bin, data, superuser string, each func(segment string)) (s *Server, err error) {
	if err := prepare(data); err != nil {
		return nil, err
	}
	s = &Server{data: data, ended: make(chan error, 1)}
	if s.run, s.remove, err = underway.Scratch(Scratch); err != nil { // short: a socket's path has at most 107 bytes
		return nil, fmt.Errorf("make a place for the socket: %w", err)
	}
	defer func() {
		if err != nil {
			s.kill()
			err = errors.Join(err, s.remove())
		}
	}()
	hba := filepath.Join(s.run, "pg_hba.conf")
	if err := errors.Join(os.WriteFile(hba, []byte("local all all trust\n"), 0o600), os.WriteFile(filepath.Join(s.run, "pg_ident.conf"), nil, 0o600)); err != nil {
		return nil, err
	}
	if s.log, err = os.Create(filepath.Join(s.run, "log")); err != nil {
		return nil, err
	}
	s.Server = session.Server{SocketDir: s.run, Superuser: superuser, Major: 14}
	s.cmd = exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(bin, "postgres"), arguments(data, s.run)...)
	s.cmd.Env, s.cmd.Dir, s.cmd.Stdout, s.cmd.Stderr = environment(), "/", s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGQUIT}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start PostgreSQL on the restored data: %w", err)
	}
	go func() { s.ended <- s.cmd.Wait() }()
	return s, s.recovered(ctx, each)
}

// arguments are those of a server that nobody else meets. data_directory is named, because the files of an adopted
// cluster may name the one that was backed up. Background workers are left out: a subscription would use the slot of
// the living group at its publisher, and a schedule of jobs would run them. hot_standby is off, because the settings of
// the group that it was backed up from, as max_connections, may not be in the files.
func arguments(data, run string) []string {
	args := []string{"-D", data}
	for _, set := range []string{
		"data_directory=" + data, "max_worker_processes=0",
		"listen_addresses=", "port=" + strconv.Itoa(session.Port), "unix_socket_directories=" + settings.QuoteList(run), "unix_socket_permissions=0700",
		"hba_file=" + filepath.Join(run, "pg_hba.conf"), "ident_file=" + filepath.Join(run, "pg_ident.conf"), "external_pid_file=",
		"archive_mode=off", "synchronous_standby_names=", "hot_standby=off", "primary_conninfo=", "primary_slot_name=", "recovery_min_apply_delay=0",
		"ssl=off", "logging_collector=off", "log_destination=stderr", "lc_messages=C", "restart_after_crash=off", "fsync=on", "autovacuum=off",
	} {
		args = append(args, "-c", set)
	}
	return args
}

// environment has nothing of the administrator's that a server would read.
func environment() []string {
	env := []string{"LC_ALL=C.UTF-8"}
	for _, k := range []string{"PATH", "TZ", "LD_LIBRARY_PATH", "HOME"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return env
}

// prepare takes the marks of the group out of the data, and gives a cluster its configuration that keeps it elsewhere.
func prepare(data string) error {
	for _, m := range marks {
		if err := durable.Remove(filepath.Join(data, m)); err != nil {
			return err
		}
	}
	path := filepath.Join(data, "postgresql.conf")
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return durable.Replace(path, []byte("# The cluster that was backed up kept its configuration outside its data directory.\n"), 0o600)
}

// recovered waits until the server takes writes.
func (s *Server) recovered(ctx context.Context, each func(string)) error {
	last := ""
	for {
		select {
		case err := <-s.ended:
			s.ended <- err
			return fmt.Errorf("the recovery ended early: %s", s.why(err))
		default:
		}
		if s.answers(ctx) {
			return nil
		}
		if at := s.replays(); at != "" && at != last {
			last = at
			each(at)
		}
		if err := retry.Sleep(ctx, 200*time.Millisecond); err != nil {
			return fmt.Errorf("the recovery was ended: %w", context.Cause(ctx))
		}
	}
}

// replays returns the name of the segment that the server has fetched last; "": none lately.
func (s *Server) replays() string {
	text := s.tail()
	_, name, ok := strings.Cut(text[max(0, strings.LastIndex(text, `restored log file "`)):], `"`)
	name, _, whole := strings.Cut(name, `"`)
	if !ok || !whole || len(name) != 24 {
		return ""
	}
	return name
}

// tail returns the end of the server's log.
func (s *Server) tail() string {
	const kept = 64 << 10
	f, err := os.Open(s.log.Name())
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	b, _ := io.ReadAll(io.NewSectionReader(f, max(0, st.Size()-kept), kept)) // what can be read of it
	return string(b)
}

func (s *Server) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := s.Connect(ctx, nil)
	if err != nil {
		return false
	}
	defer func() { _ = c.Close(ctx) }()
	recovery := true
	return c.QueryRow(ctx, "SELECT pg_is_in_recovery()").Scan(&recovery) == nil && !recovery
}

// why returns the last words of the server's log.
func (s *Server) why(err error) string {
	text := s.tail()
	var out []string
	for line := range strings.Lines(text) {
		for _, level := range []string{"FATAL:", "PANIC:", "DETAIL:", "HINT:"} {
			if _, text, ok := strings.Cut(line, level); ok && !strings.Contains(text, "not accepting connections") && !strings.Contains(text, "Hot standby mode is disabled") { // what answers is told
				out = append(out, strings.TrimSpace(text))
			}
		}
	}
	if len(out) == 0 {
		return fmt.Sprintf("%v: %s", err, strings.TrimSpace(text[max(0, len(text)-600):]))
	}
	said := strings.Join(out[max(0, len(out)-4):], "; ")
	if strings.Contains(said, "ended before configured recovery target was reached") {
		if fetched := s.Fetch(); fetched != "" {
			return said + "; WAL was not read from the archive: " + fetched
		}
		said += "; the archive has no transaction behind the target: if the old group lives, let it archive its last segment (SELECT pg_switch_wal()), otherwise restore to latest"
	}
	return said
}

// fetchError is the line with which the program that fetches WAL tells of an error. PostgreSQL takes each for the end
// of the archive, and tells of none.
var fetchError = regexp.MustCompile(`(?m)^(?:\S+ \S+ P\d+ +)?ERROR: \[\d{3}\]: (.+)$`)

// Fetch returns the last error of the program that fetches WAL; "": it told of none.
func (s *Server) Fetch() string {
	all := fetchError.FindAllStringSubmatch(s.tail(), -1)
	if len(all) == 0 {
		return ""
	}
	return strings.TrimSpace(all[len(all)-1][1])
}

// Ended returns the position at which the recovery ended: there the server's timeline leaves the one before.
func (s *Server) Ended(ctx context.Context) (lsn string, err error) {
	c, err := s.Connect(ctx, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close(ctx) }()
	var segment string
	if err := c.QueryRow(ctx, "SELECT pg_walfile_name(pg_current_wal_lsn())").Scan(&segment); err != nil {
		return "", err
	}
	history, err := os.ReadFile(filepath.Join(s.data, "pg_wal", segment[:min(len(segment), 8)]+".history"))
	if err != nil {
		return "", fmt.Errorf("the history of the recovered server: %w", err)
	}
	for line := range strings.Lines(string(history)) {
		if f := strings.Fields(line); len(f) > 1 && !strings.HasPrefix(f[0], "#") {
			lsn = f[1]
		}
	}
	return lsn, nil
}

// Each calls f with a session in every database that takes sessions, template1 among them.
func (s *Server) Each(ctx context.Context, f func(database string, c *pgx.Conn) error) error {
	c, err := s.Connect(ctx, nil)
	if err != nil {
		return err
	}
	rows, err := c.Query(ctx, "SELECT datname FROM pg_database WHERE datallowconn ORDER BY datname LIMIT 10000")
	if err != nil {
		return errors.Join(err, c.Close(ctx))
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err = errors.Join(err, c.Close(ctx)); err != nil {
		return err
	}
	for _, name := range names {
		conf, err := s.ConnConfig(name)
		if err != nil {
			return err
		}
		c, err := pgx.ConnectConfig(ctx, conf)
		if err != nil {
			return fmt.Errorf("database %s: %w", name, err)
		}
		if err = errors.Join(f(name, c), c.Close(ctx)); err != nil {
			return fmt.Errorf("database %s: %w", name, err)
		}
	}
	return nil
}

// group are settings that mean something only in the group that was backed up, or for the recovery that has ended.
var group = []string{
	"restore_command", "archive_cleanup_command", "recovery_end_command", "recovery_target", "recovery_target_action", "recovery_target_inclusive", "recovery_target_lsn",
	"recovery_target_name", "recovery_target_time", "recovery_target_timeline", "recovery_target_xid", "archive_mode", "archive_command", "archive_library", "synchronous_standby_names",
	"primary_conninfo", "primary_slot_name",
}

// Forget takes settings of the recovery and of the group that was backed up out of the data, its archive above all: the
// new cluster must never write to it.
func (s *Server) Forget(ctx context.Context) error {
	c, err := s.Connect(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(ctx) }()
	for _, name := range group {
		var known bool
		if err := c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_settings WHERE name = $1)", name).Scan(&known); err != nil {
			return fmt.Errorf("take the old group's settings away: %w", err)
		}
		if !known { // to this version
			continue
		}
		if _, err := c.Exec(ctx, "ALTER SYSTEM RESET "+name); err != nil {
			return fmt.Errorf("take the old group's settings away: %w", err)
		}
	}
	return nil
}

// Stop ends the server in order, and removes what it needed beside its data.
func (s *Server) Stop() error {
	err := s.cmd.Process.Signal(syscall.SIGINT)
	select {
	case end := <-s.ended:
		err = errors.Join(err, end)
	case <-time.After(stopLimit):
		err = fmt.Errorf("PostgreSQL on the restored data did not end within %v", stopLimit)
	}
	s.kill()
	return errors.Join(err, s.remove())
}

// kill leaves no process of the server.
func (s *Server) kill() {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // those that are there
	}
	if s.log != nil {
		_ = s.log.Close()
	}
}
