package backupruns

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
)

var request = backup.RunRequest{Kind: backup.Full, ReplayLimit: time.Minute}

// jobs returns running jobs whose command is a script.
func jobs(t *testing.T, script string) (j *Jobs, stop func()) {
	t.Helper()
	dir := t.TempDir()
	exe := filepath.Join(dir, "command")
	if err := os.WriteFile(exe, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	j = NewJobs(Config{Self: "n2", Node: dir, Backups: dir, Exe: exe, Log: slog.New(slog.DiscardHandler)})
	if _, err := j.Start(request); err == nil {
		t.Error("a backup is started before the jobs run")
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	await(t, func() bool { j.mu.Lock(); defer j.mu.Unlock(); return j.life != nil })
	return j, stop
}

func await(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not happen")
		}
	}
}

// TestStart holds how the command is run, that there is one at a time, and that its own word of its end is told.
func TestStart(t *testing.T) {
	t.Parallel()
	j, stop := jobs(t, `cd "$(dirname "$0")"; echo "$*" > args; env > env; while [ ! -e go ]; do sleep 0.05; done
while [ "$1" != --id ]; do shift; done; echo "{\"id\":\"$2\",\"ended\":\"2026-11-27T00:00:00Z\",\"made\":{\"label\":\"F\"}}" > run.json`)
	defer stop()
	r, err := j.Start(request)
	if err != nil || !r.UnderWay() {
		t.Fatal(r, err)
	}
	if _, err := j.Start(request); err == nil || !strings.Contains(err.Error(), "a backup is under way on n2 already") {
		t.Error(err)
	}
	if a := j.Activity(); a.Run.ID != r.ID || !a.Run.UnderWay() {
		t.Errorf("%+v", a)
	}
	if err := os.WriteFile(filepath.Join(j.Node, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return !j.Activity().Run.UnderWay() })
	if a := j.Activity(); a.Run.ID != r.ID || a.Run.Made.Label != "F" || a.Run.Err() != nil {
		t.Errorf("%+v, and %s was started", a, r.ID)
	}
	want := "backup run --here --type full --replay-limit 1m0s --id " + r.ID + " --json --node " + j.Node
	if b, err := os.ReadFile(filepath.Join(j.Node, "args")); err != nil || strings.TrimSpace(string(b)) != want {
		t.Errorf("%s, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(j.Node, "env")); err != nil || strings.Contains(string(b), "NOTIFY_SOCKET") {
		t.Errorf("%s, %v", b, err)
	}
	if _, err := j.Start(backup.RunRequest{Kind: "all --repo x", ReplayLimit: time.Minute}); err == nil {
		t.Error("any type is taken")
	}
}

// TestEnds holds what is told of a command that fails before it has told anything, and that the end of the agent ends
// one.
func TestEnds(t *testing.T) {
	t.Parallel()
	j, stop := jobs(t, "echo first >&2; echo 'coterie: no repository' >&2; exit 4")
	if _, err := j.Start(request); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return !j.Activity().Run.UnderWay() })
	if err := j.Activity().Run.Err(); err == nil || err.Error() != "no repository" {
		t.Error(err)
	}
	stop()
	j, stop = jobs(t, "exec sleep 600")
	if _, err := j.Start(request); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := j.Activity().Run.Err(); err == nil || !strings.Contains(err.Error(), "the agent of n2 stopped") {
		t.Error(err)
	}
}

// TestWatch holds that what others told is kept while they do not answer, and not for ever.
func TestWatch(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	w := &Watch{Ask: func(context.Context) map[ag.ReplicaID]backup.Activity {
		cancel()
		return map[ag.ReplicaID]backup.Activity{"n2": {LastLabel: "F"}}
	}}
	if len(w.Latest()) != 0 {
		t.Error("something is known")
	}
	if err := w.Run(ctx); err != nil || w.Latest()["n2"].LastLabel != "F" {
		t.Error(err, w.Latest())
	}
	w.said["n2"] = answer{w.said["n2"].Activity, time.Now().Add(-countsFor)}
	if len(w.Latest()) != 0 {
		t.Error("it is known for ever")
	}
}
