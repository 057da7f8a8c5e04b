package report

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is what the client, and in a lab the servers, ran on.
type Machine struct {
	CPU         string  `json:"cpu"`
	Cores       int     `json:"cores"`
	Governor    string  `json:"governor"`
	MemoryGiB   float64 `json:"memory_gib"`
	Kernel      string  `json:"kernel"`
	ClockSource string  `json:"clock_source"`
	FileSystem  string  `json:"file_system"` // of Dir
	SyncMS      float64 `json:"sync_ms"`     // median of writing 8 kB to it and waiting for the disk; 0: not known
	Load        string  `json:"load_average"`
	Dir         string  `json:"dir"`
}

// Describe looks at the machine, and measures the disk of dir.
func Describe(dir string) Machine {
	m := Machine{
		CPU: cpuModel(), Cores: runtime.NumCPU(), Governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
		Kernel: line("/proc/sys/kernel/osrelease"), ClockSource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
		Load: line("/proc/loadavg"), Dir: dir,
	}
	var u unix.Sysinfo_t
	if unix.Sysinfo(&u) == nil {
		m.MemoryGiB = float64(u.Totalram) * float64(u.Unit) / (1 << 30)
	}
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) == nil {
		m.FileSystem = fmt.Sprintf("%s, %.0f GiB free", fileSystem(fs.Type), float64(fs.Bavail)*float64(fs.Bsize)/(1<<30))
	}
	if d, err := SyncTime(dir, 32); err == nil {
		m.SyncMS = float64(d.Microseconds()) / 1000
	}
	return m
}

func fileSystem(magic int64) string {
	names := map[int64]string{
		0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0x01021994: "tmpfs", 0x794c7630: "overlayfs", 0x2FC12FC1: "zfs", 0x6969: "nfs", 0x65735546: "fuse",
	}
	if n, ok := names[magic]; ok {
		return n
	}
	return "file system " + strconv.FormatInt(magic, 16)
}

func line(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo") // empty where there is none
	for l := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// SyncTime is the median of n times writing 8 kB to a file in dir and waiting until the disk has it, as a commit does.
func SyncTime(dir string, n int) (time.Duration, error) {
	f, err := os.CreateTemp(dir, ".sync-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.Remove(filepath.Clean(f.Name())) }() // a file of 8 kB
	defer f.Close()
	page := make([]byte, 8192)
	if _, err := f.WriteAt(page, 0); err != nil { // the first write allocates
		return 0, err
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	var all []time.Duration
	for i := range n {
		page[0] = byte(i)
		start := time.Now()
		if _, err := f.WriteAt(page, 0); err != nil {
			return 0, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, err
		}
		all = append(all, time.Since(start))
	}
	slices.Sort(all)
	return all[len(all)/2], nil
}
