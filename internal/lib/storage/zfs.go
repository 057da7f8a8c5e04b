package storage

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// zfs describes a pool. Its state is a file of the kernel; its devices are asked of zpool, which any user may run, once
// a minute, and at once when the state has changed.
func (r *Reader) zfs(ctx context.Context, v *Volume, m mount) {
	pool, _, _ := strings.Cut(m.source, "/")
	v.Kind, v.Name = ZFS, pool
	state := r.text(path.Join("/proc/spl/kstat/zfs", pool, "state"))
	out, err := r.ask(ctx, "zpool", "status", "-p", pool)
	if err == nil {
		err = parsePool(string(out), v)
	}
	if err == nil && state != "" && poolState(string(out)) != state {
		r.forget()
		if out, err = r.ask(ctx, "zpool", "status", "-p", pool); err == nil {
			*v = Volume{Dir: v.Dir, Mount: v.Mount, Kind: ZFS, Name: pool}
			err = parsePool(string(out), v)
		}
	}
	switch {
	case err != nil && state == "DEGRADED":
		v.Mirrored, v.Devices = true, []Device{{Name: "a device", State: "missing"}}
	case err != nil:
		v.State, v.Why = Unknown, err.Error()
		return
	}
	v.judge()
}

func poolState(text string) string {
	for line := range strings.Lines(text) {
		if s, ok := strings.CutPrefix(strings.TrimSpace(line), "state:"); ok {
			return strings.TrimSpace(s)
		}
	}
	return ""
}

var (
	groupOfPool = regexp.MustCompile(`^(mirror|raidz\d?|draid\d?\S*|spare|replacing)-\d+$`)
	poolRate    = regexp.MustCompile(`at ([0-9.]+)([KMGT])?/s`)
	poolDone    = regexp.MustCompile(`([0-9.]+)% done`)
	poolScan    = regexp.MustCompile(`^\s*scan: (\S+) in progress`)
)

// parsePool reads the text of zpool status -p. Only devices that hold data count: logs, caches and spares do not.
func parsePool(text string, v *Volume) error {
	part := "" // of the text: "config" from its line on
	filling, groups, alone := (*Filling)(nil), []string{}, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		key, _, isKey := strings.Cut(strings.TrimSpace(line), ":")
		if isKey && !strings.Contains(key, " ") && !strings.HasPrefix(line, "\t") {
			part = key
		}
		if m := poolScan.FindStringSubmatch(line); m != nil {
			filling = &Filling{What: m[1], Done: -1}
		}
		if part == "scan" && filling != nil {
			filling.ofScan(line)
		}
		if part != "config" || !strings.HasPrefix(line, "\t") {
			continue
		}
		f := strings.Fields(line)
		depth := len(line) - len(strings.TrimLeft(line, "\t "))
		switch {
		case len(f) == 0 || f[0] == "NAME":
		case depth == 1 && f[0] != v.Name:
			part = "others" // logs, cache, spares, special
		case depth == 1:
		case groupOfPool.MatchString(f[0]):
			groups = append(groups, strings.SplitN(f[0], "-", 2)[0])
		case len(v.Devices) < maxDevices && len(f) >= 2:
			alone = alone || depth == 3
			v.Devices = append(v.Devices, deviceOfPool(f))
		}
	}
	if len(v.Devices) == 0 {
		return fmt.Errorf("zpool status does not tell the devices of %s", v.Name)
	}
	v.Level, v.Mirrored, v.Filling = "stripe", len(groups) > 0 && !alone, filling
	if len(groups) > 0 {
		v.Level = groups[0]
	}
	return nil
}

func (f *Filling) ofScan(line string) {
	if m := poolRate.FindAllStringSubmatch(line, -1); m != nil { // scanned at, issued at: the later is the work done
		last := m[len(m)-1]
		f.Rate = bytesOf(last[1], last[2])
	}
	if m := poolDone.FindStringSubmatch(line); m != nil {
		if pct, err := strconv.ParseFloat(m[1], 64); err == nil {
			f.Done = pct / 100
		}
	}
}

// deviceOfPool reads a line of the table: name, state, and errors at reading, writing and of checksums.
func deviceOfPool(f []string) Device {
	d := Device{Name: f[0], State: "ok"}
	switch f[1] {
	case "ONLINE":
	case "UNAVAIL", "REMOVED":
		d.State = "missing"
	case "FAULTED":
		d.State = "failed"
	default:
		d.State = strings.ToLower(f[1])
	}
	if len(f) >= 5 {
		d.Reads, d.Writes, d.Corruption = number(f[2]), number(f[3]), number(f[4])
	}
	return d
}
