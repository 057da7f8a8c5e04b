package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// The networks of a lab.
const (
	NetLoopback   = "loopback" // every node at 127.0.0.1, on ports of its own
	NetNamespaces = "netns"    // every node in a network namespace of its own, on the same ports, with links that can be shaped and cut
)

// networkName is the name, among the helpers, of the process that passes the packets of a lab with NetNamespaces. It is
// a process of its own, because a network that waits for a processor is slower than its links are set to be.
const networkName = "lab-network"

// Client is the name of this host on the lab's links: the programs that connect to the nodes from outside of them.
const Client = linkem.Client

// The files of the network process in the lab's directory.
const (
	networkSocket = "network.sock"
	networkLog    = "network.log"
	networkLock   = ".network.lock"
)

// networkTimeout bounds the wait for the network process, which does nothing that takes longer than milliseconds.
const networkTimeout = 5 * time.Second

// nodePorts are the ports of every node with NetNamespaces: read-write, read-only, endpoint, http, https.
var nodePorts = [5]int{5432, 5433, 5022, 8008, 8443}

// firstHost is the last byte of the first node's address; see linkem.
const firstHost = 11

// networkOf names the namespaces and the device of the lab in dir, which is a name of at most ten characters.
func networkOf(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:4])
}

// Namespaced reports whether the lab's nodes have namespaces of their own, with all ports.
func (l *Lab) Namespaced() bool { return l.d.Net == NetNamespaces }

// namespace names the network namespace of a node; "" is that of this host.
func (l *Lab) namespace(n Node) string {
	if !l.Namespaced() {
		return ""
	}
	return linkem.Namespace(networkOf(l.dir), n.Name)
}

// place gives a node its address on the lab's network.
func (l *Lab) place(n *Node, i int) {
	n.host, n.ports = "127.0.0.1", [5]int{n.port, n.port + 1, n.port + 2, n.port + 3, n.port + 4}
	if !l.Namespaced() {
		return
	}
	n.host, n.ports = "", nodePorts
	if l.d.Subnet.IsValid() { // else the network has not been up yet
		a := l.d.Subnet.Addr().As4()
		a[3] = byte(firstHost + i)
		n.host = netip.AddrFrom4(a).String()
	}
}

// canNamespaces returns an error that names what NetNamespaces lacks here.
func canNamespaces() error {
	if os.Geteuid() != 0 {
		return usage("a lab with --net netns makes network namespaces and TUN devices, which only root may do: run it with sudo, or use --net loopback, where links cannot be shaped or cut")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fail.Unhealthyf("a lab with --net netns needs TUN devices: %v; run modprobe tun, give the container /dev/net/tun, or use --net loopback", err)
	}
	return nil
}

// needNamespaces refuses what only NetNamespaces can do.
func (l *Lab) needNamespaces() error {
	if l.Namespaced() {
		return nil
	}
	return usage("the lab in %s is on the loopback interface, where nodes have no links of their own; make one with coterie lab up --net netns (as root)", l.dir)
}

// within calls f on a thread in the node's network. The processes that f starts run there, too.
func (l *Lab) within(n Node, f func() error) error {
	if !l.Namespaced() {
		return f()
	}
	return linkem.Enter(l.namespace(n), f)
}

// links is a connection to the network process. Its owner closes it.
type links struct {
	*linkem.Remote
	conn net.Conn
}

func (k *links) close() { _ = k.conn.Close() }

// dialNetwork connects to the network process, which must answer within patience.
func (l *Lab) dialNetwork(patience time.Duration) (*links, error) {
	d, err := os.Open(l.dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	c, err := (&net.Dialer{Timeout: patience}).DialContext(context.Background(), "unix", socketIn(d))
	if err != nil {
		return nil, fmt.Errorf("the lab's network: %w", err)
	}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		_ = c.Close()
		return nil, err
	}
	r, err := linkem.Connect(c)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return &links{r, c}, nil
}

// socketIn is the network's socket, by a path that is short enough however deep the lab's directory is.
func socketIn(dir *os.File) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), networkSocket)
}

// network connects to the network process and starts it when it does not run: at first, after a reboot, or after its
// death. The namespaces outlive it, with the nodes in them, and its links are then as they were.
func (l *Lab) network(ctx context.Context) (*links, error) {
	if k, err := l.dialNetwork(networkTimeout); err == nil {
		return k, nil
	}
	unlock, err := lockFile(ctx, filepath.Join(l.dir, networkLock), 4*networkTimeout)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if k, err := l.dialNetwork(networkTimeout / 10); err == nil { // another command was faster
		return k, nil
	}
	if p, ok, err := l.networkProcess(); err != nil {
		return nil, err
	} else if ok {
		return nil, fail.Unhealthyf("the process of the lab's network, %d, does not answer; end it with kill -9 %[1]d, and repeat this", p.pid)
	}
	if err := l.outside(); err != nil {
		return nil, err
	}
	l.progress.line("starting the network")
	if l.d.Subnet.IsValid() { // the machine may have been started anew
		err = linkem.Guard(networkOf(l.dir), l.d.Subnet)
	} else { // another lab may have been in this directory
		err = linkem.Sweep(networkOf(l.dir))
	}
	if err != nil {
		return nil, err
	}
	k, err := l.startNetwork(ctx)
	if err != nil {
		return nil, fmt.Errorf("start the lab's network: %w", err)
	}
	if l.d.Subnet.IsValid() {
		return k, nil
	}
	a, err := k.Addr(linkem.Client).Prefix(24)
	if err != nil {
		k.close()
		return nil, fmt.Errorf("the network told no address: %w", err)
	}
	l.d.Subnet = a
	if err := errors.Join(l.d.write(l.dir), linkem.Guard(networkOf(l.dir), a)); err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// ensureNetwork starts the network if there is one that does not run.
func (l *Lab) ensureNetwork(ctx context.Context) error {
	if !l.Namespaced() {
		return nil
	}
	k, err := l.network(ctx)
	if err == nil {
		k.close()
	}
	return err
}

// startNetwork starts the network process in a session of its own, as it outlives this process, and waits until it
// answers.
func (l *Lab) startNetwork(ctx context.Context) (*links, error) {
	log := filepath.Join(l.dir, networkLog)
	out, err := os.OpenFile(log, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd, err := l.helper(networkName, labDir{l.dir}, out)
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	l.agents.Go(func() { ended <- cmd.Wait() })
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no answer within %v", startTimeout))
	defer cancel()
	for {
		if k, err := l.dialNetwork(networkTimeout); err == nil {
			return k, nil
		}
		select {
		case err := <-ended:
			if err == nil {
				err = errors.New("its process ended at once")
			}
			said, _ := os.ReadFile(log)
			if text := strings.TrimPrefix(string(bytes.TrimSpace(said)), "coterie: "); text != "" {
				err = errors.New(text)
			}
			return nil, err
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), cmd.Process.Kill())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// outside refuses to make or remove the network from within it.
func (l *Lab) outside() error {
	for _, n := range l.Nodes() {
		if l.Namespaced() && linkem.Inside(l.namespace(n)) {
			return usage("this runs in the network of %s; repeat it outside of that", n.Name)
		}
	}
	return nil
}

// networkProcess finds the network process of the lab.
func (l *Lab) networkProcess() (process, bool, error) {
	ps, err := processes()
	if err != nil {
		return process{}, false, err
	}
	i := slices.IndexFunc(ps, func(p process) bool { return isNetwork(p, l.dir) })
	if i < 0 {
		return process{}, false, nil
	}
	return ps[i], true, nil
}

func isNetwork(p process, dir string) bool {
	return p.uid == os.Getuid() && p.serves(networkName, dir)
}

// endNetwork ends the network process, every process that is still in the namespaces, and removes these. It is the last
// step of taking a lab down.
func (l *Lab) endNetwork() error {
	if !l.Namespaced() {
		return nil
	}
	errs := []error{l.killStrays()}
	p, ok, err := l.networkProcess()
	if ok {
		errs = append(errs, p.signal(syscall.SIGTERM))
		if awaitGone([]process{p}, 5*time.Second) != nil {
			errs = append(errs, p.signal(syscall.SIGKILL), awaitGone([]process{p}, 5*time.Second))
		}
	}
	return errors.Join(append(errs, err, linkem.Sweep(networkOf(l.dir)))...)
}

// killStrays kills what still runs in the namespaces once the nodes have ended, such as what coterie lab exec left
// there; without that, they would not end. It spares this process and those that wait for it.
func (l *Lab) killStrays() error {
	spared := map[int]bool{}
	for pid := os.Getpid(); pid > 1 && !spared[pid]; {
		spared[pid] = true
		p, _ := readProcess(pid)
		pid = p.ppid
	}
	var strays []process
	for _, n := range l.Nodes() {
		ids, err := linkem.Processes(l.namespace(n))
		if err != nil {
			return err
		}
		for _, id := range ids {
			if p, ok := readProcess(id); ok && !spared[id] {
				l.progress.line(fmt.Sprintf("ending process %d (%s), which was left in the network of %s", id, p.comm, n.Name))
				strays = append(strays, p)
			}
		}
	}
	var errs []error
	for _, p := range strays {
		errs = append(errs, p.signal(syscall.SIGKILL))
	}
	return errors.Join(append(errs, awaitGone(strays, 10*time.Second))...)
}

// lockFile waits for its turn with a file.
func lockFile(ctx context.Context, path string, patience time.Duration) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	waits, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = retry.Until(waits, 20*time.Millisecond, func() (bool, error) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		return true, err
	})
	switch {
	case err == nil:
		return func() { _ = f.Close() }, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case waits.Err() != nil:
		err = fmt.Errorf("%s has been locked for %v by another command: %w", path, patience, unix.EWOULDBLOCK)
	default:
		err = fmt.Errorf("lock %s: %w", path, err)
	}
	return nil, errors.Join(err, f.Close())
}

// serveNetwork is the network process. It makes the lab's network with the wanted links, and changes them on request
// until ctx is done or the lab's directory does not exist any more. The namespaces stay as long as the lab does.
func serveNetwork(ctx context.Context, dir string, log *slog.Logger) (err error) {
	l, err := Open(dir)
	if err != nil {
		return err
	}
	if err := l.needNamespaces(); err != nil {
		return err
	}
	if err := linkem.Dedicate(); err != nil {
		log.Warn("links are late when processors are busy", "err", err)
	}
	o := linkem.Options{Lab: networkOf(l.dir), Subnet: l.d.Subnet, KeepNamespaces: true, Log: log, Seed: 1}
	for _, n := range l.Nodes() {
		o.Nodes = append(o.Nodes, n.Name)
	}
	network, err := linkem.Start(o)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, network.Close())
		if _, gone := os.Lstat(filepath.Join(l.dir, file)); errors.Is(gone, os.ErrNotExist) { // no other process would do it
			err = errors.Join(err, linkem.Sweep(o.Lab))
		}
	}()
	plan, err := l.readPlan()
	if err != nil {
		return err
	}
	for _, d := range plan.directions(l) {
		if err := network.Set(d.From, d.To, d.Shape); err != nil {
			return err
		}
	}
	home, err := os.Open(l.dir)
	if err != nil {
		return err
	}
	defer home.Close()
	s, err := l.listen(home)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with ctx
		awaitEndOf(ctx, filepath.Join(l.dir, file))
		cancel()
	}()
	return serveLinks(ctx, s, network, log)
}

// listen makes the socket. A killed process may have left one behind, which is removed: the caller owns the lab's
// device and so is the only one.
func (l *Lab) listen(home *os.File) (net.Listener, error) {
	if err := os.Remove(filepath.Join(l.dir, networkSocket)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	s, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", socketIn(home))
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(filepath.Join(l.dir, networkSocket), 0o600); err != nil { // the directory is root's, too
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// awaitEndOf returns when ctx is done or the file does not exist: a lab that was removed by hand needs no network.
func awaitEndOf(ctx context.Context, path string) {
	_ = retry.Until(ctx, time.Second, func() (bool, error) { // it fails only by the end of ctx
		_, err := os.Lstat(path)
		return errors.Is(err, os.ErrNotExist), nil
	})
}

// serveLinks answers commands until ctx is done.
func serveLinks(ctx context.Context, s net.Listener, network *linkem.Network, log *slog.Logger) error {
	var running sync.WaitGroup
	defer running.Wait()
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	for {
		c, err := s.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		running.Go(func() {
			defer c.Close()
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			_ = c.SetDeadline(time.Now().Add(networkTimeout)) // commands are quick, and one that hangs blocks no other
			if err := network.Serve(c); err != nil && ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				log.Warn("a command's connection broke", "err", err)
			}
		})
	}
}
