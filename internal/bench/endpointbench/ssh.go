package endpointbench

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/method"
)

// waySSH is the way of an administrator without a tunnel product: plain replication through a forwarded, compressed
// port.
var waySSH = arm{name: "ssh -C", congestion: "cubic", ssh: true}

// sshPrograms are the paths of the programs that waySSH needs.
type sshPrograms struct{ sshd, ssh, keygen string }

// findSSH returns the programs, or an error that names a missing one.
func findSSH() (p sshPrograms, err error) {
	for name, path := range map[string]*string{"sshd": &p.sshd, "ssh": &p.ssh, "ssh-keygen": &p.keygen} {
		found, lerr := exec.LookPath(name)
		for _, dir := range []string{"/usr/sbin", "/sbin"} { // sshd is here, and PATH often leaves it out
			if lerr != nil {
				found, lerr = exec.LookPath(filepath.Join(dir, name))
			}
		}
		if lerr != nil {
			return p, fmt.Errorf("there is no %s on this machine", name)
		}
		*path = found
	}
	return p, nil
}

// lessThanSSH compares our link with waySSH, if waySSH was run.
func (b *EndpointBench) lessThanSSH(less func(string, arm), reason error) {
	if reason != nil {
		b.figure(goals.Figure{Name: "wan-good-less-than-ssh", NotRun: reason.Error()})
		return
	}
	less("wan-good-less-than-ssh", waySSH)
}

// tunnel forwards the port far.End of the secondary's host to the primary's server. It runs an sshd of its own on the
// port near.End as the servers' user. One key may log in, and only to that server.
func (s *Pair) tunnel(ctx context.Context) error {
	p, err := findSSH()
	if err != nil {
		return err
	}
	u, attr, err := s.serverUser()
	if err != nil {
		return err
	}
	dir := filepath.Join(s.dir, "ssh")
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if attr.Credential != nil {
		if err := os.Chown(dir, int(attr.Credential.Uid), int(attr.Credential.Gid)); err != nil {
			return err
		}
	}
	run := func(name string, args ...string) *exec.Cmd {
		c := exec.Command(name, args...) //nolint:noctx // ends with the pair
		c.Dir, c.SysProcAttr, c.Stdout, c.Stderr = dir, attr, s.log, s.log
		return c
	}
	for _, key := range []string{"host", "key"} {
		if err := run(p.keygen, "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, key)).Run(); err != nil {
			return fmt.Errorf("ssh-keygen: %w", err)
		}
	}
	server := run(p.sshd, "-D", "-e", "-f", "/dev/null", "-h", filepath.Join(dir, "host"), "-p", strconv.Itoa(s.near.End),
		"-o", "ListenAddress="+s.near.Addr.String(), "-o", "PidFile=none", "-o", "UsePAM=no", "-o", "StrictModes=no", "-o", "PasswordAuthentication=no",
		"-o", "AuthorizedKeysFile="+filepath.Join(dir, "key.pub"), "-o", fmt.Sprintf("PermitOpen=%s:%d", s.near.Addr, s.near.Port))
	client := run(p.ssh, "-F", "/dev/null", "-N", "-C", "-p", strconv.Itoa(s.near.End), "-i", filepath.Join(dir, "key"),
		"-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ExitOnForwardFailure=yes", "-o", "ConnectionAttempts=20",
		"-L", fmt.Sprintf("127.0.0.1:%d:%s:%d", s.far.End, s.near.Addr, s.near.Port), u+"@"+s.near.Addr.String())
	for _, c := range []struct {
		at  Site
		cmd *exec.Cmd
	}{{s.near, server}, {s.far, client}} {
		if err := c.at.In(c.cmd.Start); err != nil {
			return err
		}
		s.tunnels = append(s.tunnels, func() {
			_ = c.cmd.Process.Kill()
			_ = c.cmd.Wait()
		})
	}
	return s.forwarded(ctx)
}

// forwarded waits until the port is forwarded, which happens once the key is accepted.
func (s *Pair) forwarded(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := s.far.In(func() error {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.far.End)))
			if err == nil {
				err = c.Close()
			}
			return err
		})
		if err == nil {
			return nil
		}
		if !method.Pause(ctx, 100*time.Millisecond) {
			text, _ := os.ReadFile(s.log.Name())
			return fmt.Errorf("ssh forwards nothing: %w: %s", err, lastLines(string(text), 5))
		}
	}
}

// serverUser returns the user of the servers, and the process attributes to become that user.
func (s *Pair) serverUser() (name string, attr *syscall.SysProcAttr, err error) {
	c, err := s.Primary.Command("postgres")
	if err != nil {
		return "", nil, err
	}
	attr = &syscall.SysProcAttr{Credential: c.SysProcAttr.Credential}
	u, err := user.Current()
	if attr.Credential != nil {
		u, err = user.LookupId(strconv.FormatUint(uint64(attr.Credential.Uid), 10))
	}
	if err != nil {
		return "", nil, err
	}
	return u.Username, attr, nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
