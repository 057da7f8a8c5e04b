package keeper

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/postgres/keeper/proc"
)

// The test binary has every role: the tests, their supervisor, the keeper, a stand-in for the postmaster and its
// backends, and an agent. The supervisor runs the tests as an ordinary user and kills their remaining processes, also
// after a crash of the tests.
//
// Parts are chosen by the first argument, never by the environment, which children inherit: a part that ran the tests
// again would start more parts, without end. The tests themselves run only as a direct child of their supervisor.
const supervisorVar = "KEEPER_TEST_SUPERVISOR"

func TestMain(m *testing.M) {
	part := ""
	if len(os.Args) > 1 {
		part = os.Args[1]
	}
	supervisor := os.Getenv(supervisorVar)
	switch {
	case part == "keeper":
		os.Exit(Main(os.Args[2:]))
	case part == "play-postmaster":
		playPostmaster(os.Args[2:])
	case part == "play-backend":
		playBackend(os.Args[2:])
	case part == "play-agent":
		playAgent(os.Args[2])
	case part != "" && !strings.HasPrefix(part, "-test."):
		panic("unknown part " + part)
	case supervisor == "":
		os.Exit(supervise())
	case supervisor == strconv.Itoa(os.Getppid()):
		os.Exit(m.Run())
	default:
		panic("the tests were started by one of their own children")
	}
}

func supervise() int {
	if err := proc.BecomeReaper(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("/tmp", "kt")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd, err := testsCommand(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGTERM, syscall.SIGINT)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		<-interrupted
		_ = cmd.Process.Kill()
	}()
	_ = cmd.Wait()
	code := cmd.ProcessState.ExitCode()
	limit := time.Now().Add(10 * time.Second)
	for said := false; !proc.Reap(func(int, syscall.WaitStatus) {}) && time.Now().Before(limit); time.Sleep(5 * time.Millisecond) {
		for _, p := range proc.Descendants(os.Getpid()) { // not by KillDescendants, which the tests test
			_ = syscall.Kill(p, syscall.SIGKILL)
			if st, err := proc.ReadStat(p); !said && err == nil && st.State != 'Z' {
				said = true
				fmt.Fprintln(os.Stderr, "killing what the tests left running")
			}
		}
	}
	return code
}

// testsCommand runs this binary again from a place that the user who runs the servers can reach.
func testsCommand(dir string) (*exec.Cmd, error) {
	exe := filepath.Join(dir, "keeper.test")
	in, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(exe, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close(), os.Chmod(dir, 0o755)); err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	for _, a := range os.Args[1:] {
		if !strings.HasPrefix(a, "-test.testlogfile") && !strings.HasPrefix(a, "-test.gocoverdir") {
			cmd.Args = append(cmd.Args, a)
		}
	}
	cmd.Env = append(os.Environ(), supervisorVar+"="+strconv.Itoa(os.Getpid()), "TMPDIR="+dir, "KEEPER_TEST_SOURCE="+sourceDir())
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stdout, os.Stderr
	if os.Geteuid() != 0 {
		return cmd, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, err
		}
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	return cmd, errors.Join(err1, err2, os.Chown(dir, uid, gid))
}

func sourceDir() string {
	dir, _ := os.Getwd()
	return dir
}

// playPostmaster is a stand-in for PostgreSQL: it works in its data directory, writes postmaster.pid and pg_control,
// has backends in sessions of their own, is promoted by SIGUSR1 and stops by SIGINT. Arguments: data directory, number
// of backends, then any of: deaf (to SIGQUIT, with its backends), slow (to stop).
func playPostmaster(args []string) {
	pgdata, backends, traits := args[0], args[1], strings.Join(args[2:], " ")
	if err := os.Chdir(pgdata); err != nil {
		panic(err)
	}
	saw := "primary"
	if _, err := os.Stat("standby.signal"); err == nil {
		saw = "standby"
	}
	writeFile("saw", saw)
	fmt.Fprintln(os.Stderr, "LOG:  playing a", saw)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGINT, syscall.SIGTERM)
	if strings.Contains(traits, "deaf") {
		signal.Notify(signals, syscall.SIGQUIT)
	} else {
		signal.Reset(syscall.SIGQUIT)
		go func() { // the Go runtime would print its stacks
			quit := make(chan os.Signal, 1)
			signal.Notify(quit, syscall.SIGQUIT)
			<-quit
			os.Exit(7)
		}()
	}
	n, _ := strconv.Atoi(backends)
	for range n {
		c := exec.Command("/proc/self/exe", "play-backend", traits)
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			panic(err)
		}
	}
	writeControl(map[string]uint32{"primary": 6, "standby": 5}[saw])
	writePidFile(os.Getpid(), "ready")
	for s := range signals {
		switch {
		case s == syscall.SIGUSR1:
			_ = os.Remove("standby.signal")
			writeControl(6)
			writePidFile(os.Getpid(), "ready")
		case s == syscall.SIGQUIT || strings.Contains(traits, "slow"):
		default:
			for _, p := range proc.Descendants(os.Getpid()) {
				_ = syscall.Kill(p, syscall.SIGKILL)
			}
			writeControl(1)
			_ = os.Remove("postmaster.pid")
			os.Exit(0)
		}
	}
}

func playBackend(args []string) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGQUIT)
	for range signals {
		if !strings.Contains(args[0], "deaf") {
			os.Exit(2)
		}
	}
}

func writeControl(state uint32) {
	b := make([]byte, 20)
	b[16] = byte(state)
	_ = os.MkdirAll("global", 0o700)
	writeFile(filepath.Join("global", "pg_control"), string(b))
}

func writePidFile(pid int, status string) {
	writeFile("postmaster.pid", fmt.Sprintf("%d\n/pgdata\n%d\n5432\n/run\n\n1 2\n%-8s\n", pid, time.Now().Unix(), status))
}

func writeFile(path, text string) {
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		panic(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		panic(err)
	}
}

// alive reports whether a process runs. A zombie does not.
func alive(pid int) bool {
	st, err := proc.ReadStat(pid)
	return err == nil && st.State != 'Z' && unix.Kill(pid, 0) == nil
}

var discard = slog.New(slog.DiscardHandler)
