package storage

import (
	"context"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const btrfsDir = "/sys/fs/btrfs"

// btrfs describes a file system that keeps its copies by itself.
func (r *Reader) btrfs(ctx context.Context, v *Volume, m mount) {
	v.Kind, v.Name = Btrfs, m.at
	id := r.btrfsID(m.source)
	if id == "" {
		v.Why = "no file system in " + btrfsDir + " has the device " + m.source
		return
	}
	dir := path.Join(btrfsDir, id)
	v.Level, v.Mirrored = r.profiles(dir)
	shown := r.btrfsNames(m.at)
	for _, n := range r.names(path.Join(dir, "devinfo")) {
		if _, err := strconv.Atoi(n); err == nil && len(v.Devices) < maxDevices {
			v.Devices = append(v.Devices, r.btrfsDevice(path.Join(dir, "devinfo", n), n, shown))
		}
	}
	if len(v.Devices) == 1 && !v.Mirrored { // one device, perhaps a mirror of another layer
		below := Volume{Dir: v.Dir, Mount: v.Mount}
		if name := r.names(path.Join(dir, "devices")); len(name) == 1 {
			if r.block(ctx, &below, "/sys/class/block/"+name[0], 0); below.Mirrored {
				*v = below
				return
			}
		}
	}
	v.State = None
	if op := r.text(path.Join(dir, "exclusive_operation")); op == "device replace" || op == "balance" {
		v.Filling = &Filling{What: op, Done: -1}
	}
	v.Unchecked = v.Mirrored && (slices.ContainsFunc(strings.Split(m.options, ","), func(o string) bool {
		return o == "nodatacow" || o == "nodatasum"
	}) || r.Root == "" && uncheckedDir(v.Dir))
	r.scrub(ctx, v)
	v.judge()
}

// btrfsID returns the id of the mounted file system that has the device.
func (r *Reader) btrfsID(source string) string {
	name := r.target(source)
	for _, id := range r.names(btrfsDir) {
		if strings.Count(id, "-") == 4 && slices.Contains(r.names(path.Join(btrfsDir, id, "devices")), name) {
			return id
		}
	}
	return ""
}

// profiles returns how data and metadata are kept, and whether every block has a second copy on another device.
func (r *Reader) profiles(dir string) (level string, mirrored bool) {
	var all []string
	for _, of := range []string{"data", "metadata"} {
		for _, n := range r.names(path.Join(dir, "allocation", of)) {
			if known := slices.Contains(btrfsProfiles, n); known && !slices.Contains(all, n) {
				all = append(all, n)
			}
		}
	}
	slices.Sort(all)
	mirrored = len(all) > 0
	for _, p := range all {
		mirrored = mirrored && p != "single" && p != "dup" && p != "raid0"
	}
	return strings.Join(all, ", "), mirrored
}

var btrfsProfiles = []string{"single", "dup", "raid0", "raid1", "raid1c3", "raid1c4", "raid10", "raid5", "raid6"}

// btrfsDevice reads what the kernel counts of one device. Counts of errors at writing stay until they are reset: what
// the device holds is not what it should be until a scrub has repaired it.
func (r *Reader) btrfsDevice(dir, id string, shown map[string]string) Device {
	d := Device{Name: shown[id], State: "ok"}
	if d.Name == "" {
		d.Name = "devid " + id
	}
	for line := range strings.Lines(r.text(path.Join(dir, "error_stats"))) {
		f := strings.Fields(line)
		if len(f) != 2 {
			continue
		}
		n, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "read_errs":
			d.Reads = n
		case "write_errs":
			d.Writes = n
		case "flush_errs":
			d.Flushes = n
		case "corruption_errs":
			d.Corruption = n
		case "generation_errs":
			d.Generation = n
		}
	}
	switch {
	case r.text(path.Join(dir, "missing")) == "1":
		d.State = "missing"
	case d.Writes+d.Flushes+d.Generation > 0:
		d.State = "behind"
	}
	return d
}

var (
	scrubRate  = regexp.MustCompile(`(?m)^Rate:\s+([0-9.]+)([KMGT]i)?B/s`)
	scrubDone  = regexp.MustCompile(`(?m)^Bytes scrubbed:.*\(([0-9.]+)%\)`)
	scrubState = regexp.MustCompile(`(?m)^Status:\s+running`)
)

// scrub adds a scrub under way, which only root may ask for: for others it is left out.
func (r *Reader) scrub(ctx context.Context, v *Volume) {
	if v.Filling != nil || !v.Mirrored || r.Run == nil && !privileged() {
		return
	}
	b, err := r.ask(ctx, "btrfs", "scrub", "status", v.Mount)
	if err == nil {
		v.Filling = parseScrub(string(b))
	}
}

// parseScrub reads the text of btrfs scrub status; nil: none runs.
func parseScrub(text string) *Filling {
	if !scrubState.MatchString(text) {
		return nil
	}
	f := &Filling{What: "scrub", Done: -1}
	if m := scrubDone.FindStringSubmatch(text); m != nil {
		if pct, err := strconv.ParseFloat(m[1], 64); err == nil {
			f.Done = pct / 100
		}
	}
	if m := scrubRate.FindStringSubmatch(text); m != nil {
		f.Rate = bytesOf(m[1], strings.TrimSuffix(m[2], "i"))
	}
	return f
}

// bytesOf returns a number with one of the letters K, M, G or T behind it, in bytes.
func bytesOf(number, unit string) int64 {
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || n < 0 || n > 1e9 {
		return 0
	}
	for range strings.Index("KMGT", unit) + 1 {
		if unit == "" {
			break
		}
		n *= 1024
	}
	return int64(n)
}
