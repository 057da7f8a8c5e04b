package keeper

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/keeper/proc"
)

// MeasureFence measures how long this host takes to fence a server of so many backends in the worst case: no backend
// obeys SIGQUIT, and each has a session of its own. The running executable must dispatch the word keeper to Main.
func MeasureFence(ctx context.Context, children int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "keeper", "--measure", strconv.Itoa(max(children, 1)))
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("measure the time to fence: %w: %s", err, bytes.TrimSpace(errs.Bytes()))
	}
	d, err := time.ParseDuration(strings.TrimSpace(out.String()))
	if err != nil {
		return 0, fmt.Errorf("measure the time to fence: %w", err)
	}
	return d, nil
}

// measureHere is the process that MeasureFence starts: it forks a stand-in for a server, fences it and prints how long
// that took.
func measureHere(children int, out, errs io.Writer) int {
	d, err := measure(children)
	if err != nil {
		_, _ = fmt.Fprintln(errs, err)
		return exitError
	}
	_, _ = fmt.Fprintln(out, d)
	return exitOK
}

func measure(children int) (time.Duration, error) {
	if err := proc.BecomeReaper(); err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer func() { _ = null.Close() }()
	f := proc.StartForker()
	files := []uintptr{null.Fd(), null.Fd(), null.Fd()}
	// The first one stands for the postmaster. Half of the others are its children, half are orphans of ours.
	script := `trap "" QUIT; i=0; while [ $i -lt ` + strconv.Itoa(children/2) + ` ]; do sleep 40 & i=$((i+1)); done; wait`
	postmaster, err := f.Fork("/bin/sh", []string{"sh", "-c", script}, os.Environ(), files)
	if err != nil {
		return 0, err
	}
	defer proc.KillDescendants()
	for range children - children/2 {
		if _, err := f.Fork("/bin/sh", []string{"sh", "-c", "trap '' QUIT; exec sleep 40"}, os.Environ(), files); err != nil {
			return 0, err
		}
	}
	starting, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err = retry.Until(starting, 10*time.Millisecond, func() (bool, error) { return len(proc.Descendants(os.Getpid())) > children, nil })
	if err != nil {
		return 0, fmt.Errorf("starting %d processes takes longer than 20 s", children)
	}
	began := time.Now()
	_ = syscall.Kill(postmaster, syscall.SIGQUIT)
	dying, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_ = retry.Sleep(dying, KillAfter) // shorter than its context
	err = retry.Until(dying, time.Millisecond, func() (bool, error) {
		proc.KillDescendants()
		return proc.Reap(func(int, syscall.WaitStatus) {}), nil
	})
	if err != nil {
		return 0, fmt.Errorf("processes %v survive SIGKILL", proc.Descendants(os.Getpid()))
	}
	return time.Since(began), nil
}
