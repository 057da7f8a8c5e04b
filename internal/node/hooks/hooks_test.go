package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/node/events"
)

// patience is how long a command may take to show that it ran.
const patience = 2 * time.Minute

// directory returns one with the commands: their names with their texts, executable by the owner.
func directory(t *testing.T, commands map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "hooks.d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range commands {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// quiet is what a node remembers to which nothing happened.
func quiet() []events.Event { return nil }

// TestCommandsThatAreNotRun holds which files of the directory are no commands, and which directories have none.
func TestCommandsThatAreNotRun(t *testing.T) {
	t.Parallel()
	dir := directory(t, map[string]string{"10-good": "", "bad.sh": "", "backup~": "", "writable": "", "plain": "", "setuid": ""})
	at := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(os.Chmod(at("writable"), 0o720), os.Chmod(at("plain"), 0o600), os.Chmod(at("setuid"), 0o700|fs.ModeSetuid), os.Symlink("/bin/true", at("link")), os.Mkdir(at("sub"), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	files, err := List(dir, os.Getuid())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if (f.Bad == "") != (f.Name == "10-good") {
			t.Errorf("%s: %q", f.Name, f.Bad)
		}
	}
	if len(files) != 8 {
		t.Errorf("%d files", len(files))
	}
	if files, err := List(dir, os.Getuid()+1); os.Getuid() != 0 && err == nil {
		t.Errorf("a directory of another user is used: %v", files)
	}
	if err := os.Chmod(dir, 0o770); err != nil {
		t.Fatal(err)
	}
	if files, err := List(dir, os.Getuid()); err == nil {
		t.Errorf("a directory that others may write to is used: %v", files)
	}
	if _, err := List(at("none"), 0); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	many := map[string]string{}
	for i := range maxCommands + 3 {
		many[fmt.Sprintf("%02d", i)] = ""
	}
	files, err = List(directory(t, many), os.Getuid())
	if err != nil || files[maxCommands-1].Bad != "" || files[maxCommands].Bad == "" {
		t.Errorf("%v %v", files, err)
	}
}

// TestWhatOnlyRootMayUse holds that a file of root which the node's user cannot execute is named as one that is not
// run, and that a directory of root which that user cannot read has no commands.
func TestWhatOnlyRootMayUse(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: it makes files of root")
	}
	dir := directory(t, map[string]string{"1-private": "", "2-shared": "", "3-own": ""})
	if files, err := List(dir, 1234); err == nil {
		t.Errorf("of a directory that the user cannot read: %v", files)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(at("2-shared"), 0o755), os.Chown(at("3-own"), 1234, -1)); err != nil {
		t.Fatal(err)
	}
	files, err := List(dir, 1234)
	if err != nil || len(files) != 3 || files[0].Bad == "" || files[1].Bad != "" || files[2].Bad != "" {
		t.Errorf("%v %v", files, err)
	}
}

// TestACommandIsNotSpared holds that a command does not inherit the score by which the agent is spared when memory runs
// out.
func TestACommandIsNotSpared(t *testing.T) {
	const score = "/proc/self/oom_score_adj"
	was, err := os.ReadFile(score)
	if err != nil || os.WriteFile(score, []byte("0"), 0) != nil || os.WriteFile(score, []byte("200"), 0) != nil {
		t.Skip("NOT RUN: the score of this process cannot be changed")
	}
	defer func() { _ = os.WriteFile(score, was, 0) }()
	r := New(directory(t, map[string]string{"looks": "for i in $(seq 50); do read -r s < /proc/$$/oom_score_adj; [ $s = 0 ] && exit; sleep 0.1; done; exit 1"}), os.Getuid(), quiet, slog.New(slog.DiscardHandler))
	if r.tell(t.Context(), events.Event{}); r.Counts().Done != 1 {
		t.Error("the command has the score of the agent")
	}
}

// TestACommandGetsTheEvent runs a command: it reads the event, has no environment of the agent and no descriptors of
// it, and the process that it leaves behind ends with it.
func TestACommandGetsTheEvent(t *testing.T) {
	t.Setenv("PGPASSWORD", "a secret")
	out := filepath.Join(t.TempDir(), "out")
	held, err := os.Create(filepath.Join(t.TempDir(), "held"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	dir := directory(t, map[string]string{
		"10-first": "cat > " + out + ".json; env > " + out + ".env; ls -l /proc/self/fd > " + out + ".fd; pwd > " + out + ".dir; sleep 1000 & echo $! > " + out + ".pid",
		"20-fails": "exit 3",
	})
	e := events.Event{Group: "g", Node: "n1", At: time.Now().UTC().Round(0), Epoch: 7, Kind: "leadership", What: "took over\x00\n", Because: "n2 was silent"}
	r := New(dir, os.Getuid(), quiet, slog.New(slog.DiscardHandler))
	r.tell(t.Context(), e)
	if got := r.Counts(); got != (Counts{Done: 1, Failed: 1}) {
		t.Errorf("%+v", got)
	}
	read := func(end string) string {
		b, err := os.ReadFile(out + end)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	var got events.Event
	if err := json.Unmarshal([]byte(read(".json")), &got); err != nil || got != e {
		t.Errorf("the command read %s: %v", read(".json"), err)
	}
	if env := read(".env"); strings.Contains(env, "secret") || !strings.Contains(env, "COTERIE_EVENT=leadership") || strings.Count(env, "\n") > 9 {
		t.Errorf("its environment is %s", env)
	}
	if strings.Contains(read(".fd"), held.Name()) {
		t.Errorf("it has descriptors of the agent: %s", read(".fd"))
	}
	if read(".dir") != dir {
		t.Errorf("it runs in %s", read(".dir"))
	}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		state, err := os.ReadFile("/proc/" + read(".pid") + "/stat")
		if err != nil || strings.Contains(string(state), ") Z ") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("what it started goes on")
		}
	}
}

// TestACommandThatIsNotStarted holds that the log blames the first line of a command only where that is to blame.
func TestACommandThatIsNotStarted(t *testing.T) {
	const itself = "it was started and ended so itself"
	for name, tt := range map[string]struct{ text, says, not string }{
		"no such interpreter":     {"#!/no/such/program -x\necho\n", `the program "/no/such/program" of its first line cannot be started: no such file`, itself},
		"of another system":       {"#!/bin/sh\r\necho\r\n", `the program "/bin/sh\r" of its first line`, itself},
		"interpreter no program":  {"#!/etc/passwd\n", `the program "/etc/passwd" of its first line cannot be started: permission denied`, itself},
		"env finds nothing":       {"#!/usr/bin/env nosuchprogram\n", itself, "first line"},
		"a script finds nothing":  {"#!/bin/sh\nnosuchprogram\n", "exit status 127: " + itself, "first line"},
		"a script ends so":        {"#!/bin/sh\nexit 126\n", "exit status 126: " + itself, "first line"},
		"a script without a word": {"nosuchprogram\n", "is a script in which a program was not found", "first line"},
		"another exit code":       {"#!/bin/sh\nexit 3\n", "exit status 3", "126"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "x"), []byte(tt.text), 0o700); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		New(dir, os.Getuid(), quiet, slog.New(slog.NewJSONHandler(&log, nil))).tell(t.Context(), events.Event{})
		var line struct{ Err string }
		if err := json.Unmarshal(log.Bytes(), &line); err != nil || !strings.Contains(line.Err, tt.says) || strings.Contains(line.Err, tt.not) {
			t.Errorf("%s: %v %s", name, err, line.Err)
		}
	}
}

// TestACommandThatDoesNotEnd is killed when the node stops, with what it has started.
func TestACommandThatDoesNotEnd(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	r := New(directory(t, map[string]string{"slow": "sleep 1000 & echo > " + out + "; wait"}), os.Getuid(), quiet, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.tell(ctx, events.Event{}) })
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(out); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it does not begin")
		}
	}
	stop()
	running.Wait()
	if got := r.Counts(); got.Failed != 1 || got.Done != 0 {
		t.Errorf("%+v", got)
	}
}

// TestAFileSystemThatHangs holds that a command which hangs while it is executed is given up, and that the agent goes
// on meanwhile: its garbage is collected, which stops every goroutine.
func TestAFileSystemThatHangs(t *testing.T) {
	dir := directory(t, map[string]string{"hangs": "exit 0"})
	file, err := os.Open(filepath.Join(dir, "hangs"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGIO)
	defer signal.Stop(asked)
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("NOT RUN: the file system has no leases:", err)
	}
	release := sync.OnceFunc(func() { _, _ = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_UNLCK) })
	defer release()
	r := New(dir, os.Getuid(), quiet, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	told := make(chan struct{})
	go func() {
		defer close(told)
		r.tell(ctx, events.Event{})
	}()
	select {
	case <-asked: // who executes the file waits for the lease now, as for a file server
	case <-time.After(patience):
		t.Fatal("it is not executed")
	}
	began := time.Now()
	runtime.GC()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the agent stood still for %v", took)
	}
	stop()
	<-told
	if took := time.Since(began); took > 20*time.Second || r.Counts() != (Counts{Failed: 1}) {
		t.Errorf("%v, %+v", took, r.Counts())
	}
	release()
	for end := time.Now().Add(patience); r.Counts().Done == 0; time.Sleep(10 * time.Millisecond) {
		if r.tell(t.Context(), events.Event{}); time.Now().After(end) {
			t.Fatal("it is not run again after its file system answers")
		}
	}
}

// TestAQueueThatIsFull holds that a queue which is full drops what comes, and counts it.
func TestAQueueThatIsFull(t *testing.T) {
	t.Parallel()
	var list []events.Event
	r := New(directory(t, nil), os.Getuid(), func() []events.Event { return list }, slog.New(slog.DiscardHandler))
	for i := range maxWaiting + 6 {
		list = append(list, events.Event{At: time.Unix(int64(i), 0), Kind: "health", What: "x"})
	}
	for range 3 {
		r.look()
	}
	if len(r.waiting) != maxWaiting || r.Counts().Dropped != 6 {
		t.Errorf("%d wait, %d were dropped", len(r.waiting), r.Counts().Dropped)
	}
}

// TestNoDirectory holds that a node without a directory looks at nothing.
func TestNoDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(filepath.Join(t.TempDir(), "none"), 0, func() []events.Event { panic("asked") }, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
}
