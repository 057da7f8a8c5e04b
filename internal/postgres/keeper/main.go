package keeper

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/keeper/memlog"
	"github.com/coteriedb/coterie/internal/postgres/keeper/proc"
)

// Exit codes of `coterie keeper`.
const (
	exitOK      = 0
	exitError   = 1
	exitUsage   = 2
	exitRefused = 4 // another keeper serves this node directory
)

// Main runs `coterie keeper --dir NODE --run RUNDIR` (args follow the word keeper) and returns the exit code. It holds
// NODE/keeper/lock, serves RUNDIR/keeper.sock and logs to stderr.
func Main(args []string) int {
	if len(args) > 0 && args[0] == "keeper" {
		args = args[1:]
	}
	flags := flag.NewFlagSet("coterie keeper", flag.ContinueOnError)
	dir := flags.String("dir", "", "node directory")
	run := flags.String("run", "", "run directory, for the socket")
	measure := flags.Int("measure", 0, "measure the time to fence this many processes, print it and exit")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	if *measure > 0 {
		return measureHere(*measure, os.Stdout, os.Stderr)
	}
	if *dir == "" || *run == "" || flags.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "coterie keeper: --dir and --run are needed; it is started by coterie agent, not by hand")
		return exitUsage
	}
	out := newAsyncLog(os.Stderr)
	defer out.close()
	log := slog.New(slog.NewTextHandler(out, nil))
	if err := serve(log, *dir, *run); err != nil {
		log.Error("keeper ends", "err", err)
		if errors.Is(err, ErrBusy) {
			return exitRefused
		}
		return exitError
	}
	return exitOK
}

// serve runs a keeper from start to end.
func serve(log *slog.Logger, nodeDir, runDir string) error {
	nodeDir, err1 := filepath.Abs(nodeDir)
	runDir, err2 := filepath.Abs(runDir)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	dir := filepath.Join(nodeDir, "keeper")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.MkdirAll(runDir, 0o700)); err != nil {
		return fmt.Errorf("prepare directories: %w", err)
	}
	lock, err := lockNode(dir)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := settleIn(log); err != nil {
		return err
	}
	alarm, err := newAlarm()
	if err != nil {
		return err
	}
	k := &keeper{
		log: log, dir: dir, runDir: runDir, fork: proc.StartForker(), alarm: alarm,
		disk: make(chan diskJob, 256), inbox: make(chan func()), gone: make(chan struct{}),
	}
	if k.out, err = memlog.New(); err != nil {
		log.Warn("the server's log goes to the disk at once: the agent cannot read it, and has each commit confirmed", "err", err)
	} else {
		defer k.out.Close()
	}
	k.cleanUp()
	l, err := listen(filepath.Join(runDir, SocketName))
	if err != nil {
		return err
	}
	log.Info("keeper serves", "pid", os.Getpid(), "socket", l.Addr().String(), "epoch", k.epoch, "fenced", k.fenced != nil)

	sigchld, term := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(sigchld, syscall.SIGCHLD)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGINT)
	var wg sync.WaitGroup
	all := &sessions{open: make(map[*conn]bool)}
	wg.Go(alarm.serve)
	wg.Go(k.serveDisk)
	wg.Go(func() { k.accept(l, all) })
	k.run(sigchld, term)
	_ = l.Close() // removes the socket, too
	all.finish()
	close(k.disk)
	_ = alarm.file.Close()
	wg.Wait()
	log.Info("keeper ends")
	return nil
}

// lockNode takes the lock of the node directory; it lasts as long as the process.
func lockNode(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	if holder, err := lockFile(f); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, refuse(ErrBusy, "%s is locked: another keeper serves this node directory (process %.20s)", f.Name(), holder)
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	if err := f.Truncate(0); err != nil {
		return nil, fmt.Errorf("write %s: %w", f.Name(), err)
	}
	if _, err := fmt.Fprintf(f, "%d", os.Getpid()); err != nil {
		return nil, fmt.Errorf("write %s: %w", f.Name(), err)
	}
	return f, nil
}

// dyingTime is how long a killed keeper may hold its lock: until the kernel has ended the last of its threads.
const dyingTime = 10 * time.Second

// lockFile locks the file, or returns its holder. It waits for a holder that is already dying.
func lockFile(f *os.File) (holder string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), dyingTime)
	defer cancel()
	_ = retry.Until(ctx, 10*time.Millisecond, func() (bool, error) { // at its end the last attempt counts
		holder = ""
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			return true, nil
		}
		b := make([]byte, 32)
		n, _ := f.ReadAt(b, 0)
		holder = string(b[:n])
		pid, bad := strconv.Atoi(holder)
		st, gone := proc.ReadStat(pid)
		return bad != nil || gone == nil && st.State != 'Z', nil
	})
	return holder, err
}

// settleIn prepares this process to outlive all others: reaper, signals, OOM score, locked memory.
func settleIn(log *slog.Logger) error {
	if _, err := proc.ReadStat(os.Getpid()); err != nil {
		return fmt.Errorf("a fence needs /proc: %w", err)
	}
	if err := proc.BecomeReaper(); err != nil {
		return err
	}
	runtime.GOMAXPROCS(2)
	unix.Umask(0o077)
	// A hangup or a broken log pipe must not end the parent of the postmaster.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGPIPE)
	adjustOOM(os.Getpid(), -1000)
	// Without a privilege or an unlimited allowance, MCL_FUTURE would make a later allocation fail, which ends the
	// process.
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || (os.Geteuid() != 0 && limit.Cur != unix.RLIM_INFINITY) {
		log.Warn("memory is not locked: a host short of memory can delay a fence; allow it with LimitMEMLOCK=infinity", "err", err)
		return nil
	}
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		log.Warn("memory is not locked: a host short of memory can delay a fence", "err", err)
	}
	return nil
}

// listen opens the socket and replaces that of a keeper which has ended.
func listen(path string) (*net.UnixListener, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if c, err := (&net.Dialer{}).DialContext(ctx, "unix", path); err == nil {
		_ = c.Close()
		return nil, refuse(ErrBusy, "%s is served by the keeper of another node directory", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("serve %s: %w", path, err)
	}
	return l, nil
}

// asyncLog is an io.Writer with a bounded queue: logging to a hung disk must not block the loop. Lines that do not fit
// are dropped.
type asyncLog struct {
	lines chan []byte
	done  sync.WaitGroup
}

func newAsyncLog(w io.Writer) *asyncLog {
	p := &asyncLog{lines: make(chan []byte, 256)}
	p.done.Go(func() {
		for b := range p.lines {
			_, _ = w.Write(b)
		}
	})
	return p
}

// Write queues a line.
func (p *asyncLog) Write(b []byte) (int, error) {
	select {
	case p.lines <- append([]byte(nil), b...):
	default:
	}
	return len(b), nil
}

func (p *asyncLog) close() {
	close(p.lines)
	p.done.Wait()
}
