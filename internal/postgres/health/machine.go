package health

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// busyAt is the share of the last ten seconds, in percent, in which a task waited for a processor. From it on the
// machine counts as overloaded.
const busyAt = 60

// busyProcessors reports whether the machine is short of processor time, by the kernel's pressure stall information. A
// kernel without it never counts as busy.
func busyProcessors() bool {
	b, err := os.ReadFile("/proc/pressure/cpu")
	return err == nil && pressure(string(b)) >= busyAt
}

// pressure reads the first avg10 of a pressure file.
func pressure(s string) float64 {
	_, rest, _ := strings.Cut(s, "avg10=")
	word, _, _ := strings.Cut(rest, " ")
	f, err := strconv.ParseFloat(word, 64)
	if err != nil {
		return 0
	}
	return f
}

// processStopped reports whether a process is stopped by a signal or a debugger.
func processStopped(pid int) bool {
	if pid <= 0 {
		return false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	rest := b[bytes.LastIndexByte(b, ')')+1:] // the name may hold anything
	f := bytes.Fields(rest)
	return len(f) > 0 && (f[0][0] == 'T' || f[0][0] == 't')
}

// device watches whether a block device completes requests. A device that does is slow, not dead.
type device struct {
	path  string // of its counters; "": the device has none
	count uint64
	moved time.Duration // boottime at which the counters last moved
}

// open sets the device of a file system by its number.
func (d *device) open(dev uint64) {
	path := fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(dev), unix.Minor(dev))
	if _, err := os.Stat(path); err != nil {
		path = ""
	}
	if path != d.path {
		*d = device{path: path}
	}
}

// look reads the counters and reports whether they have moved within the last few seconds.
func (d *device) look(now, within time.Duration) bool {
	if d.path == "" {
		return false
	}
	b, err := os.ReadFile(d.path)
	if err != nil {
		return false
	}
	if n := completed(string(b)); n != d.count {
		d.count, d.moved = n, now
	}
	return d.moved != 0 && now-d.moved < within
}

// completed sums the reads, writes and flushes of a device's stat file.
func completed(s string) (n uint64) {
	f := strings.Fields(s)
	for _, i := range []int{0, 4, 15} {
		if i < len(f) {
			x, err := strconv.ParseUint(f[i], 10, 64)
			if err == nil {
				n += x
			}
		}
	}
	return n
}
