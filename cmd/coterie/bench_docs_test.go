package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/cli/benchcmd"
	"github.com/coteriedb/coterie/internal/measure/method"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
)

// pageCommands returns the commands in the blocks of docs/bench.md, each as the words after coterie.
func pageCommands(t *testing.T) (all [][]string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "bench.md"))
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "```") {
			inside = !inside
			continue
		}
		line, _, _ = strings.Cut(line, "#")
		if inside && strings.HasPrefix(line, "coterie ") {
			all = append(all, words(line)[1:])
		}
	}
	return all
}

// words splits a command like a shell, but supports single quotes only.
func words(line string) (all []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			all = append(all, part)
			continue
		}
		all = append(all, strings.Fields(part)...)
	}
	return all
}

// TestBenchPage runs the commands of docs/bench.md, except the one that makes a lab, which TestBenchAllQuick runs.
func TestBenchPage(t *testing.T) {
	commands := pageCommands(t)
	t.Chdir(t.TempDir())
	for _, dir := range []string{"before", "after"} {
		r := &benchreport.Report{Title: dir, Experiments: []benchreport.Experiment{{Name: "routing", Title: "Routing", Metrics: []benchreport.Metric{
			{Name: "12 threads/routed/rate", Unit: "1/s", Better: method.HigherIsBetter, Value: 100, Low: 99, High: 101},
			{Name: "12 threads/routed/p99", Unit: "ms", Better: method.LowerIsBetter, Value: 9, Low: 8, High: 10},
		}}}}
		if err := r.Save(dir); err != nil {
			t.Fatal(err)
		}
	}
	ran := map[string]bool{}
	for _, command := range commands {
		if len(command) < 2 || command[0] != "bench" {
			t.Fatalf("nothing runs %q", command)
		}
		ran[command[1]] = true
		if command[1] == "all" {
			continue
		}
		var out bytes.Buffer
		c := benchcmd.Bench()
		c.SetArgs(command[1:])
		c.SetOut(&out)
		if err := c.Execute(); err != nil || out.Len() == 0 {
			t.Errorf("coterie %v: %v\n%s", command, err, &out)
		}
	}
	for _, one := range []string{"all", "list", "compare"} {
		if !ran[one] {
			t.Errorf("docs/bench.md has no coterie bench %s", one)
		}
	}
}

// TestBenchAllQuick runs the first command of docs/bench.md, which makes labs, measures and removes the labs. Its
// report answers the four questions.
func TestBenchAllQuick(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("takes some ten minutes; make test-long runs it (COTERIE_LONG=1)")
	}
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: nodes with limits and links need root")
	}
	all := pageCommands(t)
	all = slices.DeleteFunc(all, func(c []string) bool { return c[1] != "all" })
	if len(all) != 1 {
		t.Fatalf("%d commands make a whole report", len(all))
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "coterie")
	if text, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute) // on a busy machine; on an idle one it takes less than ten minutes
	defer cancel()
	lab := filepath.Join("/var/tmp", "coterie-quick-"+filepath.Base(filepath.Dir(dir)))
	c := exec.CommandContext(ctx, program, append(all[0], "--dir", lab)...)
	c.Dir, c.Cancel, c.WaitDelay = dir, func() error { return c.Process.Signal(os.Interrupt) }, 2*time.Minute
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // if the test is killed, the command removes its lab
	runtime.LockOSThread()                                           // the starting thread must live as long as the command
	defer runtime.UnlockOSThread()
	start := time.Now()
	text, err := c.CombinedOutput()
	t.Logf("%v\n%s", time.Since(start).Round(time.Second), text)
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(lab); err == nil {
		t.Errorf("the lab is still there: %s", lab)
	}
	r, err := benchreport.Load(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	answered := map[string]bool{}
	for _, e := range r.Experiments {
		answered[e.Name] = e.NotRun == "" && e.Answer != "" && e.Beside != ""
	}
	for _, one := range []string{"routing", "commit", "tunnel", "failover"} {
		if !answered[one] {
			t.Errorf("the report does not answer what %s asks", one)
		}
	}
}
