package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/config"
)

// RoleCommand is the hidden command that makes the lab's role: `coterie lab RoleCommand SOCKETDIR`, the password on standard input.
// It is a process of its own because only the user of the servers may open their private socket as their superuser.
const RoleCommand = "make-role"

// makeRole makes the superuser of the lab's connection strings on the primary. It may be repeated.
func (l *Lab) makeRole(ctx context.Context, n Node) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	layout, err := config.NewLayout(n.Dir)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, l.d.Exe, "lab", RoleCommand, layout.Sockets())
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stdin = strings.NewReader(l.d.Password)
	cmd.WaitDelay = 5 * time.Second
	if os.Getuid() == 0 {
		uid, gid, err := nodeUser()
		if err != nil {
			return err
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return nodeError{n.Name, fmt.Errorf("make the role %s: %w: %s", role, err, bytes.TrimSpace(out))}
	}
	return nil
}

// MakeRole is what the hidden command does: it makes the role in the server of socketDir with the password that in holds.
func MakeRole(ctx context.Context, socketDir string, in io.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	b, err := io.ReadAll(io.LimitReader(in, 200))
	if err != nil {
		return err
	}
	password := strings.TrimSpace(string(b))
	if password == "" || strings.ContainsAny(password, `'\`) {
		return errors.New("the password is empty or has a quote in it")
	}
	c, err := pgx.ParseConfig("port=5432 user=postgres dbname=postgres application_name=coterie_lab sslmode=disable connect_timeout=10")
	if err != nil {
		return err
	}
	c.Host = socketDir
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	verb := "CREATE"
	var there bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", role).Scan(&there); err != nil {
		return err
	}
	if there {
		verb = "ALTER"
	}
	// The statement holds the password: it is not for the server's log.
	_, err = conn.Exec(ctx, fmt.Sprintf("SET log_statement = none; SET log_min_duration_statement = -1; SET log_min_error_statement = panic; "+
		"%s ROLE %s SUPERUSER LOGIN PASSWORD '%s'", verb, role, password))
	return err
}
