package storage

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// raidLV reports whether a logical volume is made of images of itself: LVM names them so.
func (r *Reader) raidLV(dir string) bool {
	for _, s := range r.names(path.Join(dir, "slaves")) {
		name := r.text(path.Join("/sys/class/block", s, "dm/name"))
		if strings.Contains(name, "_rimage_") || strings.Contains(name, "_mimage_") {
			return true
		}
	}
	return false
}

// lvm describes a logical volume that LVM mirrors. The kernel's files do not have its health: lvs is asked, which root
// may run.
func (r *Reader) lvm(ctx context.Context, v *Volume, dir string) {
	v.Kind, v.Level, v.Mirrored = LVM, "raid", true
	vg, lv := splitDM(r.text(path.Join(dir, "dm/name")))
	v.Name = vg + "/" + lv
	b, err := r.ask(ctx, "lvs", "--reportformat", "json", "--units", "b", "--nosuffix", "-a",
		"-o", "lv_name,segtype,sync_percent,raid_sync_action,raid_mismatch_count,lv_health_status,devices", vg)
	if err == nil {
		err = parseLVS(b, lv, v)
	}
	if err != nil {
		v.State, v.Why = Unknown, err.Error()
		return
	}
	v.judge()
}

// splitDM divides the name of a volume of LVM in device mapper's form, where a hyphen inside a name is doubled.
func splitDM(name string) (vg, lv string) {
	const hyphen = "\x00"
	vg, lv, _ = strings.Cut(strings.ReplaceAll(name, "--", hyphen), "-")
	return strings.ReplaceAll(vg, hyphen, "-"), strings.ReplaceAll(lv, hyphen, "-")
}

// lvRow is a logical volume as lvs reports it. Every value is a text.
type lvRow struct {
	Name     string `json:"lv_name"`
	Segment  string `json:"segtype"`
	Percent  string `json:"sync_percent"`
	Action   string `json:"raid_sync_action"`
	Mismatch string `json:"raid_mismatch_count"`
	Health   string `json:"lv_health_status"`
	Devices  string `json:"devices"`
}

// parseLVS reads what lvs reports of a volume and of its images.
func parseLVS(b []byte, lv string, v *Volume) error {
	var doc struct {
		Report []struct {
			LV []lvRow `json:"lv"`
		} `json:"report"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return fmt.Errorf("lvs: %w", err)
	}
	found, health := false, ""
	for _, rep := range doc.Report {
		for _, row := range rep.LV {
			name := strings.Trim(row.Name, "[]") // of one that is hidden
			switch {
			case name == lv:
				found, health = true, row.Health
				v.ofLVS(row)
			case strings.HasPrefix(name, lv+"_rimage_") || strings.HasPrefix(name, lv+"_mimage_"):
				if len(v.Devices) < maxDevices {
					v.Devices = append(v.Devices, imageOf(row))
				}
			}
		}
	}
	if !found {
		return fmt.Errorf("lvs does not report the volume %s", lv)
	}
	if v.Level == "raid0" {
		v.Mirrored = false
	}
	v.ofHealth(health)
	return nil
}

func (v *Volume) ofLVS(row lvRow) {
	v.Level, v.Differing = row.Segment, number(row.Mismatch)
	pct, err := strconv.ParseFloat(row.Percent, 64)
	if err == nil && pct < 100 || row.Action != "" && row.Action != "idle" && row.Action != "frozen" {
		v.Filling = &Filling{What: row.Action, Done: -1}
		if v.Filling.What == "" {
			v.Filling.What = "copy"
		}
		if err == nil {
			v.Filling.Done = pct / 100
		}
	}
}

// ofHealth adds what is wrong with the volume where no image tells it.
func (v *Volume) ofHealth(word string) {
	bad := slices.ContainsFunc(v.Devices, func(d Device) bool { return d.State != "ok" })
	switch {
	case word == "" || bad:
	case word == "refresh needed":
		v.Devices = append(v.Devices, Device{Name: "a side", State: "behind"})
	case word == "mismatches exist":
		v.Differing = max(v.Differing, 1)
	default: // partial, and words of later versions
		v.Devices = append(v.Devices, Device{Name: "a side", State: word})
	}
}

func imageOf(row lvRow) Device {
	name, _, _ := strings.Cut(row.Devices, "(")
	d := Device{Name: name, State: "ok"}
	switch {
	case name == "" || strings.Contains(name, "unknown") || strings.Contains(name, "missing") || row.Health == "partial":
		d.State = "missing"
		if name == "" {
			d.Name = strings.Trim(row.Name, "[]")
		}
	case row.Health != "":
		d.State = row.Health
	}
	return d
}
