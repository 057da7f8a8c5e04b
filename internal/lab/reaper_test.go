package lab

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab/linkem"
)

// eventually waits for a condition.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after 90 s", what)
		}
	}
}

// left lists what still runs of a lab.
func left(t *testing.T, dir string) (all []string) {
	t.Helper()
	ps, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		if line := strings.Join(p.argv, " "); strings.Contains(line, dir) && p.pid != os.Getpid() {
			all = append(all, strconv.Itoa(p.pid)+" "+line)
		}
	}
	return all
}

// TestMakerDies kills a command that makes a lab for itself, with SIGKILL, while its nodes start: no part of the lab
// stays behind. Before that, another command that wants the same place gets an error that names the maker.
func TestMakerDies(t *testing.T) {
	exe, dir := program(t), newDir(t)
	port := freePort(t)
	args := []string{"demo", "--dir", dir, "--port", strconv.Itoa(port)}
	namespaces := os.Getuid() == 0 && canNamespaces() == nil
	if namespaces {
		args = []string{"demo", "--dir", dir, "--net", "netns"}
	}
	var said bytes.Buffer
	cmd := exec.Command(exe, args...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &said, &said, &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // killed, in the end
		close(ended)
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	eventually(t, "a node's agent runs", func() bool {
		select {
		case <-ended:
			t.Fatalf("it ended by itself: %s", &said)
		default:
		}
		_, err := os.Stat(filepath.Join(dir, "n1", "pgdata"))
		return err == nil
	})
	if pid, command, ok := Maker(dir); !ok || pid != cmd.Process.Pid || !strings.Contains(command, "demo") {
		t.Errorf("the lab's maker is %d (%s), %t; want %d", pid, command, ok, cmd.Process.Pid)
	}
	out, err := exec.CommandContext(t.Context(), exe, args...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "process "+strconv.Itoa(cmd.Process.Pid)) || strings.Contains(string(out), "lab down") {
		t.Errorf("a second command in the same place: %v: %s", err, out)
	}
	network := networkOf(dir)
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-ended
	eventually(t, "the lab's directory is gone", func() bool {
		_, err := os.Lstat(dir)
		return errors.Is(err, os.ErrNotExist)
	})
	eventually(t, "nothing of it runs", func() bool { return len(left(t, dir)) == 0 })
	if namespaces && linkem.Exists(linkem.Namespace(network, "n1")) {
		t.Error("its namespaces are still there")
	}
}

// TestLeave holds that a lab that Leave keeps, and one that is taken down, need no reaper.
func TestLeave(t *testing.T) {
	for name, end := range map[string]func(*Lab){
		"left": (*Lab).Leave,
		"down": func(l *Lab) {
			if err := l.Down(context.Background()); err != nil {
				t.Error(err)
			}
		},
	} {
		dir := newDir(t)
		l, err := Up(t.Context(), Options{Dir: dir, Exe: program(t), Port: freePort(t), Empty: true, Bound: true})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, name+": the lab is bound to this process", func() bool { // one that has just begun shows no command line yet
			_, _, ok := Maker(dir)
			return ok
		})
		end(l)
		if all := left(t, dir); len(all) > 0 {
			t.Errorf("%s: still there: %v", name, all)
		}
		if _, err := os.Stat(filepath.Join(dir, file)); (err == nil) != (name == "left") {
			t.Errorf("%s: its directory: %v", name, err)
		}
	}
}

// TestAbandoned kills the reaper of a lab and forgets the lab, as a machine that stops does. The next command in the
// same place makes its lab there. A lab that was left on purpose, or that a command still holds, is refused and stays.
func TestAbandoned(t *testing.T) {
	dir := newDir(t)
	up := func() *Lab {
		l, err := Up(t.Context(), Options{Dir: dir, Exe: program(t), Port: freePort(t), Empty: true, Bound: true})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := up()
	if _, err := DemoDir(dir, "demo"); err == nil || !strings.Contains(err.Error(), "still runs") {
		t.Errorf("the place of a lab whose maker runs: %v", err)
	}
	reaper, ok, err := reaperOf(dir)
	if !ok || err != nil {
		t.Fatalf("no reaper: %v", err)
	}
	if err := errors.Join(reaper.signal(syscall.SIGKILL), awaitGone([]process{reaper}, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if place, err := DemoDir(dir, "demo"); err != nil || place != dir {
		t.Errorf("the place of an abandoned lab: %s, %v", place, err)
	}
	second := up()
	if first.d.Password == second.d.Password {
		t.Error("the abandoned lab was taken for the new one")
	}
	second.Leave()
	if _, err := DemoDir(dir, "demo"); err == nil || !strings.Contains(err.Error(), "lab down --dir "+dir) {
		t.Errorf("the place of a lab that was left on purpose: %v", err)
	}
	if err := second.Down(t.Context()); err != nil {
		t.Error(err)
	}
	if all := left(t, dir); len(all) > 0 {
		t.Errorf("still there: %v", all)
	}
}

// TestPortsTaken: a lab whose ports are taken gets an error that names their holders.
func TestPortsTaken(t *testing.T) {
	l := &Lab{d: description{Replicas: 1, Port: freePort(t), Net: NetLoopback}}
	s, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", l.Nodes()[0].readWrite())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	err = l.portsFree()
	if err == nil || !strings.Contains(err.Error(), "process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("%v: want the number of this process, %d", err, os.Getpid())
	}
}
