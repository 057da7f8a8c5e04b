package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab/cgroup"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/reexec"
)

// Exec becomes the command, in the network of a node or of the Client: it does not return but with an error. In a
// node's network the names of all nodes resolve.
func (l *Lab) Exec(node string, argv []string) error {
	if err := l.needNamespaces(); err != nil {
		return err
	}
	if len(argv) == 0 {
		return usage("no command; as in: coterie lab exec %s -- ip addr", node)
	}
	if node != Client {
		if _, err := l.node(node); err != nil {
			return usage("the lab has no node %s; it has %s", node, strings.Join(l.ends(), ", "))
		}
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("%s: %w", argv[0], errors.Unwrap(err))
	}
	run := func() error { return syscall.Exec(path, argv, os.Environ()) }
	if node == Client {
		return run()
	}
	hosts, err := l.writeHosts()
	if err != nil {
		return err
	}
	return linkem.Enter(linkem.Namespace(networkOf(l.dir), node), func() error {
		if err := overHosts(hosts); err != nil {
			return err
		}
		return run()
	})
}

// writeHosts makes a hosts file that knows the nodes, besides what this host's knows.
func (l *Lab) writeHosts() (string, error) {
	if !l.d.Subnet.IsValid() {
		return "", errors.New("the lab's network has not been up yet; coterie lab up starts it")
	}
	own, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\t%s\n", l.d.Subnet.Addr().Next(), Client)
	for _, n := range l.Nodes() {
		fmt.Fprintf(&b, "%s\t%s\n", n.host, n.Name)
	}
	path := filepath.Join(l.dir, "hosts")
	text := append([]byte(b.String()), own...)
	if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, text) {
		return path, nil // others may be reading it
	}
	return path, errors.Join(os.WriteFile(path, text, 0o600), os.Chmod(path, 0o644)) //nolint:gosec // any user may read names
}

// overHosts lays the file over /etc/hosts for this thread, and for what it becomes.
func overHosts(path string) error {
	if _, err := os.Stat("/etc/hosts"); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("new mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep mounts apart: %w", err)
	}
	if err := unix.Mount(path, "/etc/hosts", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("lay %s over /etc/hosts: %w", path, err)
	}
	return nil
}

// roleName is the name, among the helpers, of the process that makes the lab's role, with the password on its input. It
// is a process of its own because only the user of the servers may open their private socket as their superuser.
const roleName = "lab-role"

// roleConfig has the directory of the server's socket.
type roleConfig struct {
	Sockets string `json:"sockets"`
}

// makeRole makes the superuser of the lab's connection strings on the primary. It may be repeated.
func (l *Lab) makeRole(ctx context.Context, n Node) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	layout, err := config.NewLayout(n.Dir)
	if err != nil {
		return err
	}
	cmd, err := reexec.Spec{Exe: l.d.Exe, Name: roleName, Config: roleConfig{layout.Sockets()}}.Command(ctx)
	if err != nil {
		return err
	}
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

// makeRoleOn makes the role in the server of socketDir with the password that in holds.
func makeRoleOn(ctx context.Context, socketDir string, in io.Reader) error {
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

// CapStatus is what a node may use of the machine, and how often it was stopped there.
type CapStatus struct {
	cgroup.Limits
	cgroup.Usage
}

// capName is the name of the node's control group: two labs on one machine have different ones.
func (l *Lab) capName(n Node) string {
	sum := sha256.Sum256([]byte(l.dir))
	return fmt.Sprintf("coterie-lab-%s-%s", hex.EncodeToString(sum[:4]), n.Name)
}

// tryCaps refuses caps that this machine cannot set, before anything is made.
func (l *Lab) tryCaps() error {
	if l.d.Caps == (cgroup.Limits{}) {
		return nil
	}
	if err := l.d.Caps.Check(); err != nil {
		return usage("%s", err)
	}
	name := l.capName(Node{Name: "try"})
	if _, err := cgroup.Create(name, l.d.Caps); err != nil {
		return fail.Refusedf("limits of processor and memory cannot be set here: %s; nothing was made", err)
	}
	return cgroup.Remove(name)
}

// startCapped starts a program of the node within the node's caps.
func (l *Lab) startCapped(n Node, cmd *exec.Cmd) error {
	if l.d.Caps == (cgroup.Limits{}) {
		return cmd.Start()
	}
	g, err := cgroup.Create(l.capName(n), l.d.Caps)
	if err != nil {
		return fmt.Errorf("set the limits of %s: %w", n.Name, err)
	}
	return g.Start(cmd)
}

// removeCaps removes the nodes' control groups once nothing runs in them.
func (l *Lab) removeCaps() error {
	if l.d.Caps == (cgroup.Limits{}) {
		return nil
	}
	var errs []error
	for _, n := range l.Nodes() {
		errs = append(errs, cgroup.Remove(l.capName(n)))
	}
	return errors.Join(errs...)
}

func (l *Lab) capStatus(n Node) *CapStatus {
	if l.d.Caps == (cgroup.Limits{}) {
		return nil
	}
	return &CapStatus{l.d.Caps, cgroup.Read(l.capName(n))}
}
