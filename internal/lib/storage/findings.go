package storage

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Finding is what is wrong with a volume, and what to do.
type Finding struct {
	Dir   string `json:"dir"`
	State State  `json:"state"` // which it is about
	What  string `json:"what"`
	Run   string `json:"run"`
}

// Distinct returns each volume once though several directories stand on it: with the first of them, or the first whose
// files have no checksums.
func Distinct(all []Volume) (out []Volume) {
	for _, v := range all {
		i := slices.IndexFunc(out, func(o Volume) bool { return o.Kind == v.Kind && o.Name == v.Name })
		switch {
		case i < 0:
			out = append(out, v)
		case v.Unchecked && !out[i].Unchecked:
			out[i] = v
		}
	}
	return out
}

// Findings returns what is wrong with volumes, each volume once.
func Findings(all []Volume) (out []Finding) {
	for _, v := range Distinct(all) {
		out = append(out, v.Findings()...)
	}
	return out
}

// Findings returns what is wrong with the volume, the worst first.
func (v Volume) Findings() (out []Finding) {
	about := v.State
	add := func(run, format string, a ...any) {
		out = append(out, Finding{v.Dir, about, fmt.Sprintf(format, a...), run})
	}
	at := v.Title()
	switch v.State {
	case Degraded:
		if v.lost() {
			add("make the storage again, or: "+v.mend(), "no side of the mirror under %s has everything: %s", at, v.sides(true))
			break
		}
		add(v.mend(), "the mirror under %s is degraded: %s; the other side serves", at, v.sides(true))
	case Errors:
		what := v.sides(false)
		if !v.Mirrored {
			add(v.mend(), "a device under %s returned errors: %s", at, what)
			break
		}
		if what != "" {
			add(v.mend(), "a device of the mirror under %s returned errors: %s; the other side had the data", at, what)
		}
	case Unknown:
		if v.Mirrored { // where nothing is known of a mirror, nothing is wrong with it
			add("sudo coterie check storage", "the state of the mirror under %s is not known: %s", at, v.Why)
		}
	case None, Whole, Resync:
	}
	about = Errors
	if v.Differing > 0 {
		add(v.compare(), "the sides of the mirror under %s differ in %d places by its last comparison", at, v.Differing)
	}
	if v.Unchecked {
		add("move the files to a directory without chattr +C, on a mount without nodatacow", "files in %s have no checksums, so the mirror cannot tell which side is right", v.Dir)
	}
	about = Resync
	if f := v.Filling; f != nil && v.Mirrored && !f.compares() {
		add("wait for its end", "a side of the mirror under %s is being filled: %s", at, f)
	}
	return out
}

// compares reports whether sides are compared that are both whole, which is no finding.
func (f Filling) compares() bool {
	return f.What == "check" || f.What == "scrub" || f.What == "balance"
}

// String returns a filling for a person.
func (f Filling) String() string {
	s := f.What
	if f.Done >= 0 {
		s += fmt.Sprintf(", %.1f %% done", 100*f.Done)
	}
	if f.Rate > 0 {
		s += fmt.Sprintf(", %.1f MB/s", float64(f.Rate)/1e6)
	}
	return s
}

// Title names the volume with its layer: its directory alone says nothing to the layer's tools.
func (v Volume) Title() string {
	if v.Name == v.Dir {
		return fmt.Sprintf("%s (%s)", v.Dir, v.Kind)
	}
	return fmt.Sprintf("%s (%s %s)", v.Dir, v.Kind, v.Name)
}

// lost reports whether no side is well.
func (v Volume) lost() bool {
	return len(v.Devices) > 1 && !slices.ContainsFunc(v.Devices, func(d Device) bool { return d.State == "ok" })
}

// sides returns how the devices are that are not well. The figures of a device that is not whole are left out: they
// grow all the time.
func (v Volume) sides(short bool) string {
	var out []string
	for _, d := range v.Devices {
		switch n := d.errors(); {
		case d.State == "behind" && short:
			out = append(out, d.Name+" lacks writes that failed")
		case d.State != "ok":
			out = append(out, d.Name+" is "+d.State)
		case n != "":
			out = append(out, d.Name+" has "+n)
		}
	}
	return strings.Join(out, ", ")
}

// errors returns the counts that are not zero.
func (d Device) errors() string {
	var out []string
	for _, c := range []struct {
		n    int64
		what string
	}{{d.Reads, "read"}, {d.Writes, "write"}, {d.Flushes, "flush"}, {d.Corruption, "checksum"}, {d.Generation, "generation"}} {
		switch {
		case c.n == 1:
			out = append(out, "1 "+c.what+" error")
		case c.n > 1:
			out = append(out, fmt.Sprintf("%d %s errors", c.n, c.what))
		}
	}
	return strings.Join(out, " and ")
}

// mend returns what to do about a side that is missing, lacks writes or returns errors.
func (v Volume) mend() string {
	name := quoted(v.Name)
	switch v.Kind {
	case Btrfs:
		m := quoted(v.Mount)
		if v.State == Errors {
			return fmt.Sprintf("btrfs filesystem sync %s && btrfs scrub start -B %s && btrfs device stats -z %s; if errors come again: btrfs replace start DEVID NEW %s", m, m, m, m)
		}
		return fmt.Sprintf("if the device is back: btrfs filesystem sync %s && btrfs scrub start -B %s && btrfs device stats -z %s; else: btrfs replace start DEVID NEW %s", m, m, m, m)
	case MD:
		return fmt.Sprintf("mdadm --detail %s; then mdadm %s --re-add DEVICE, or --fail, --remove and --add NEW", name, name)
	case LVM:
		vg, _, _ := strings.Cut(v.Name, "/")
		return fmt.Sprintf("lvs -a -o+devices,lv_health_status %s; then lvchange --refresh %s, or lvconvert --repair %s", quoted(vg), name, name)
	case ZFS:
		return fmt.Sprintf("zpool status -v %s; then zpool online %s DEVICE or zpool replace %s OLD NEW, and zpool clear %s", name, name, name, name)
	case Plain, Other:
	}
	return "replace the device, after a copy of the data"
}

// compare returns how the sides are compared and made equal.
func (v Volume) compare() string {
	switch v.Kind {
	case MD:
		return fmt.Sprintf("echo check > /sys/block/%s/md/sync_action; swap and unaligned writes differ harmlessly; if it stays, coterie replica seed", quoted(strings.TrimPrefix(v.Name, "/dev/")))
	case LVM:
		return "lvchange --syncaction check " + quoted(v.Name) + "; if it stays, coterie replica seed"
	case Btrfs, ZFS, Plain, Other:
	}
	return v.mend()
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9/._:@%+=,-]+$`)

// quoted returns a name as a word of a shell's command. It may be that of another node, which says what it likes.
func quoted(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
