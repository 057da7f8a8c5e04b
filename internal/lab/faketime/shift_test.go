package faketime

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test program tells the time, many times, when it is asked to.
func TestMain(m *testing.M) {
	if os.Getenv("WALLCLOCK_TEST_TELL") != "" {
		for range 4 { // threads that ask all the time
			go func() {
				for {
					_ = time.Now()
				}
			}()
		}
		start := time.Now()
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			fmt.Println(time.Now().UnixMilli(), time.Since(start).Milliseconds())
		}
	}
	os.Exit(m.Run())
}

// teller is a process that tells the time for each line it reads.
type teller struct {
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Reader
}

func start(t *testing.T, cmd *exec.Cmd) *teller {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = r
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	t.Cleanup(func() { _ = w.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return &teller{cmd, w, bufio.NewReader(out)}
}

// ask returns how far the process's wall clock is from ours.
func (c *teller) ask(t *testing.T) time.Duration {
	t.Helper()
	if _, err := c.in.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	line, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	ms, err := strconv.ParseInt(strings.Fields(line)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Until(time.UnixMilli(ms))
}

func (c *teller) shift(t *testing.T, offset time.Duration) {
	t.Helper()
	if err := Possible(); err != nil {
		t.Skip(err)
	}
	for {
		stop(t, c.cmd.Process.Pid)
		err := Shift(c.cmd.Process.Pid, offset)
		_ = c.cmd.Process.Signal(syscall.SIGCONT)
		if err == nil {
			break
		}
		if errors.Is(err, os.ErrPermission) {
			t.Skipf("this user may not change another process: %v", err)
		}
		if !errors.Is(err, ErrBusy) {
			t.Fatal(err)
		}
	}
	if got, err := Offset(c.cmd.Process.Pid); err != nil || got != offset {
		t.Errorf("the offset reads %v, %v; want %v", got, err, offset)
	}
}

// stop stops every thread of a process.
func stop(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		moving := 0
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && !strings.Contains(string(b), ") T ") {
				moving++
			}
		}
		if moving == 0 {
			return
		}
	}
	t.Fatal("not stopped within 10 s")
}

func TestShift(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash, a program in C")
	}
	self := exec.Command(os.Args[0])
	self.Env = append(os.Environ(), "WALLCLOCK_TEST_TELL=1")
	for name, cmd := range map[string]*exec.Cmd{
		"a program in Go": self,
		"a program in C":  exec.Command(bash, "-c", `while read -r; do printf '%s\n' "$(( ${EPOCHREALTIME/[.,]/} / 1000 )) 0"; done`),
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, cmd)
			near := func(want time.Duration) {
				t.Helper()
				if got := c.ask(t); (got - want).Abs() > 20*time.Second {
					t.Errorf("its clock is off by %v, want %v", got, want)
				}
			}
			near(0)
			for _, d := range []time.Duration{time.Hour, -time.Hour, 30 * 24 * time.Hour, 0} {
				c.shift(t, d)
				near(d)
			}
		})
	}
}

// A forked process has the same clock; a program that a shell executes begins with the true one.
func TestForkAndExec(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs bash")
	}
	c := start(t, exec.Command(bash, "-c", `while read -r; do (printf '%s\n' "$(( ${EPOCHREALTIME/[.,]/} / 1000 ))"); date +%s000; done`))
	c.shift(t, time.Hour)
	if got := c.ask(t); (got - time.Hour).Abs() > 20*time.Second {
		t.Errorf("forked: off by %v", got)
	}
	line, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	ms, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	if d := time.Until(time.UnixMilli(ms)); err != nil || d.Abs() > 20*time.Second {
		t.Errorf("executed: off by %v: %v", d, err)
	}
}

// The durations that a program measures do not change, and it survives being changed again and again while its threads
// ask.
func TestMonotonicStays(t *testing.T) {
	self := exec.Command(os.Args[0])
	self.Env = append(os.Environ(), "WALLCLOCK_TEST_TELL=1")
	c := start(t, self)
	began := time.Now()
	for i := range 20 {
		c.shift(t, time.Duration(i-10)*time.Hour)
		if _, err := c.in.WriteString("\n"); err != nil {
			t.Fatal(err)
		}
		line, err := c.out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		ms, err := strconv.ParseInt(strings.Fields(line)[1], 10, 64)
		if err != nil || ms < 0 || ms > time.Since(began).Milliseconds()+1000 {
			t.Errorf("it measured %d ms of %v: %v", ms, time.Since(began), err)
		}
	}
}

func TestCheck(t *testing.T) {
	for _, d := range []time.Duration{time.Millisecond, MaxOffset + time.Second, -MaxOffset - time.Second} {
		if Check(d) == nil {
			t.Errorf("%v was accepted", d)
		}
	}
	if _, err := Offset(1 << 30); err == nil {
		t.Error("a process that is not there has an offset")
	}
}
