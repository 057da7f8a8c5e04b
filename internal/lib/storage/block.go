package storage

import (
	"context"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// block describes what a block device is, given by its directory in /sys, and goes down through partitions, encryption
// and linear volumes until it finds a mirror or a device with nothing below it.
func (r *Reader) block(ctx context.Context, v *Volume, dir string, depth int) {
	real, err := filepath.EvalSymlinks(r.path(dir))
	if err != nil || depth > maxDepth {
		v.Kind, v.Why, v.State = Plain, "the kernel does not describe the device "+path.Base(dir), Unknown
		return
	}
	if r.Root != "" {
		real = strings.TrimPrefix(real, filepath.Clean(r.Root))
	}
	name := path.Base(real)
	if r.text(path.Join(real, "partition")) != "" {
		real = path.Dir(real)
	}
	switch uuid := r.text(path.Join(real, "dm/uuid")); {
	case r.text(path.Join(real, "md/level")) != "":
		r.md(v, real)
	case strings.HasPrefix(uuid, "LVM-") && r.raidLV(real):
		r.lvm(ctx, v, real)
	default:
		below := r.names(path.Join(real, "slaves"))
		if len(below) == 0 {
			v.Kind, v.Name, v.State = Plain, "/dev/"+name, None
			v.Devices = []Device{{Name: "/dev/" + path.Base(real), State: "ok"}}
			return
		}
		var all []Volume
		for _, s := range below[:min(len(below), maxDevices)] {
			one := Volume{Dir: v.Dir, Mount: v.Mount}
			r.block(ctx, &one, "/sys/class/block/"+s, depth+1)
			all = append(all, one)
		}
		*v = weakest(all)
	}
}

// weakest returns the volume that is lost first: one without a mirror, else the one in the worst state.
func weakest(all []Volume) Volume {
	out := all[0]
	for _, v := range all[1:] {
		if out.Mirrored && (!v.Mirrored || v.State != out.State && worst(v.State, out.State) == v.State) {
			out = v
		}
	}
	return out
}

// md describes an array of the kernel's driver for RAID.
func (r *Reader) md(v *Volume, dir string) {
	in := func(name string) string { return r.text(path.Join(dir, "md", name)) }
	v.Kind, v.Name, v.Level = MD, "/dev/"+path.Base(dir), in("level")
	v.Mirrored = v.Level != "raid0" && v.Level != "linear" && number(in("raid_disks")) > 1
	v.State = None
	filled := 0
	for _, n := range r.names(path.Join(dir, "md")) {
		of, ok := strings.CutPrefix(n, "dev-")
		if !ok || len(v.Devices) == maxDevices {
			continue
		}
		d := Device{Name: "/dev/" + of, State: "ok", Reads: number(in(n + "/errors"))}
		words := "," + in(n+"/state") + ","
		switch {
		case strings.Contains(words, ",faulty,"):
			d.State = "failed"
		case strings.Contains(words, ",in_sync,"):
			filled++
		case in(n+"/slot") == "none":
			continue // a spare takes nobody's place yet
		default:
			d.State = "behind"
		}
		v.Devices = append(v.Devices, d)
	}
	lacking := number(in("degraded"))
	for _, d := range v.Devices {
		if d.State != "ok" {
			lacking--
		}
	}
	for range min(max(lacking, 0), maxDevices) {
		v.Devices = append(v.Devices, Device{Name: "a side", State: "missing"})
	}
	if action := in("sync_action"); action != "" && action != "idle" && action != "frozen" {
		v.Filling = &Filling{What: action, Done: ratio(in("sync_completed")), Rate: 1024 * number(in("sync_speed"))}
	}
	if v.Level == "raid1" || v.Level == "raid10" {
		v.Differing = number(in("mismatch_cnt"))
	}
	v.judge()
}

// number returns the number that a text begins with; 0 if it begins with none.
func number(s string) int64 {
	if f := strings.Fields(s); len(f) > 0 {
		if n, err := strconv.ParseInt(f[0], 10, 64); err == nil {
			return max(n, 0)
		}
	}
	return 0
}

// ratio reads a text such as "1024 / 4096"; -1 if it is none.
func ratio(s string) float64 {
	a, b, ok := strings.Cut(s, "/")
	all := number(b)
	if !ok || all == 0 {
		return -1
	}
	return min(float64(number(a))/float64(all), 1)
}
