package seedbench

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lib/reexec"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
)

// seedTarget is the receiving side, as a process of its own in its node's network. Its cost is thus separate from that
// of the source.
type seedTarget struct {
	Addr        string `json:"addr"` // of the source
	Dir         string `json:"dir"`
	Compression string `json:"compression"`
	MaxRate     int64  `json:"max_rate,omitempty"`
	Profile     string `json:"profile,omitempty"`
}

// seedTargetLine is a line of its output: its progress, and at its end the result.
type seedTargetLine struct {
	Progress progress.Progress `json:"progress"`
	Ended    bool              `json:"ended,omitempty"`
	Err      string            `json:"error,omitempty"`
}

// targetName is the name under which this program runs Target.
const targetName = "bench-seeding-target"

// Target returns the name and the helper that runs a seedTarget. It prints a seedTargetLine for each progress report
// and one at its end.
func Target() (name string, h reexec.Helper) {
	return targetName, reexec.Typed(func(ctx context.Context, t seedTarget, s reexec.Streams) error {
		return t.run(ctx, json.NewEncoder(s.Out))
	})
}

func (s seedTarget) run(ctx context.Context, out *json.Encoder) error {
	if s.Profile != "" {
		f, err := os.Create(s.Profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	o := seeding.Options{
		Dial: func(ctx context.Context) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.Addr)
			if err != nil {
				return nil, err
			}
			return tls.Client(c, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}), nil //nolint:gosec // both ends are this program
		},
		Member: "n2", Epoch: 1, Compression: s.Compression, Target: filepath.Join(s.Dir, "pgdata"), StateDir: filepath.Join(s.Dir, "state"),
		MaxRate: func() int64 { return s.MaxRate }, Spread: s.MaxRate > 0,
		Progress: func(p progress.Progress) { _ = out.Encode(seedTargetLine{Progress: p}) }, // a reader that does not read has ended this process
	}
	r, err := seeding.Run(ctx, o)
	end := seedTargetLine{Progress: r.Progress, Ended: true}
	if err != nil {
		end.Err = err.Error()
	}
	return out.Encode(end)
}

// errKilled is the error of a target that was ended on purpose.
var errKilled = errors.New("killed")

// fill runs a target until its end. It calls each with the target's process id and every progress report; when each
// returns false, it kills the target.
func (b *seedBench) fill(ctx context.Context, s seedTarget, each func(pid int, p progress.Progress) bool) (progress.Progress, error) {
	s.Addr = b.addr
	target, err := reexec.Start(ctx, reexec.Spec{Name: targetName, Config: s}, reexec.Within(func(start func() error) error {
		return linkem.Enter(b.net.Namespace("n2"), start)
	}))
	if err != nil {
		return progress.Progress{}, err
	}
	last, killed := seedTargetLine{}, false
	lines := json.NewDecoder(bufio.NewReader(target.Out))
	for lines.Decode(&last) == nil {
		if !last.Ended && !killed && !each(target.Pid(), last.Progress) {
			killed = true
			target.Kill()
		}
	}
	_, _ = io.Copy(io.Discard, target.Out) // output that is not JSON
	err = target.Stop()
	switch {
	case killed:
		return last.Progress, errKilled
	case ctx.Err() != nil:
		return last.Progress, context.Cause(ctx)
	case err != nil:
		return last.Progress, err
	case last.Err != "":
		return last.Progress, errors.New(last.Err)
	}
	return last.Progress, nil
}

// serverTime returns the processor time that the server and all its processes have used so far, in seconds.
func (b *seedBench) serverTime() float64 {
	text, err := os.ReadFile(filepath.Join(b.server.Data(), "postmaster.pid"))
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return 0
	}
	total := processTime(pid)
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, child := range strings.Fields(string(children)) {
		if pid, err := strconv.Atoi(child); err == nil {
			total += processTime(pid)
		}
	}
	return total
}

// processTime returns the processor time that a process and its ended children have used so far, in seconds
// (proc_pid_stat(5), fields 14 to 17).
func processTime(pid int) (seconds float64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const ticks = 100 // per second, in every build of Linux
	for _, f := range fields[min(11, len(fields)):min(15, len(fields))] {
		n, err := strconv.ParseFloat(f, 64)
		if err != nil {
			return 0
		}
		seconds += n / ticks
	}
	return seconds
}

// ownTime returns the processor time that this process has used so far, in seconds.
func ownTime() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// seedPatience bounds the wait for a throttled seeding to begin.
const seedPatience = time.Minute
