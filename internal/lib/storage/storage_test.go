package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// recorded makes a tree of the kernel's files: a line is "PATH = TEXT" or "PATH -> TARGET"; \n in a text is a new line.
func recorded(t *testing.T, lines string) *Reader {
	t.Helper()
	root := t.TempDir()
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		p, text, isFile := strings.Cut(line, " = ")
		link, to, isLink := strings.Cut(line, " -> ")
		if !isFile && !isLink {
			continue
		}
		if isLink {
			p = link
		}
		p = filepath.Join(root, p)
		err := os.MkdirAll(filepath.Dir(p), 0o755)
		switch {
		case err != nil:
		case isLink:
			err = os.MkdirAll(filepath.Join(root, to), 0o755)
			err = errors.Join(err, os.Symlink(filepath.Join(root, to), p))
		default:
			err = os.WriteFile(p, []byte(strings.ReplaceAll(text, `\n`, "\n")+"\n"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return &Reader{Root: root, Run: func(context.Context, string, ...string) ([]byte, error) { return nil, errors.New("no tool") }}
}

const btrfsID = "cf04ecc0-f07d-4f1e-a0f3-d21a4c8f27f0"

// btrfsTree is a mirror of two devices, as Linux 6.18 shows it.
func btrfsTree(second string) string {
	fs := "/sys/fs/btrfs/" + btrfsID
	return strings.NewReplacer("FS", fs, "SECOND", second).Replace(`
/proc/self/mountinfo = 27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n44 27 0:39 / /srv/my\040data rw,relatime shared:1 - btrfs /dev/loop0 rw,space_cache=v2,subvolid=5,subvol=/
FS/devices/loop0 -> /sys/devices/virtual/block/loop0
FS/devices/loop1 -> /sys/devices/virtual/block/loop1
FS/exclusive_operation = none
FS/allocation/data/flags = 1
FS/allocation/data/raid1/total_bytes = 67108864
FS/allocation/metadata/raid1/total_bytes = 53673984
FS/devinfo/1/missing = 0
FS/devinfo/1/error_stats = write_errs 0\nread_errs 0\nflush_errs 0\ncorruption_errs 0\ngeneration_errs 0
`) + strings.ReplaceAll(second, "FS", fs)
}

const mdTree = `
/proc/self/mountinfo = 27 1 254:0 / / rw - ext4 /dev/vda rw\n50 27 9:0 / /srv rw - xfs /dev/md0 rw
/sys/dev/block/9:0 -> /sys/devices/virtual/block/md0
/sys/devices/virtual/block/md0/md/level = raid1
/sys/devices/virtual/block/md0/md/raid_disks = 2
/sys/devices/virtual/block/md0/md/dev-sda1/state = in_sync
/sys/devices/virtual/block/md0/md/dev-sda1/slot = 0
/sys/devices/virtual/block/md0/md/dev-sda1/errors = 0
`

const lvmTree = `
/proc/self/mountinfo = 50 27 253:4 / /srv rw - xfs /dev/mapper/vg--one-pg rw
/sys/dev/block/253:4 -> /sys/devices/virtual/block/dm-4
/sys/devices/virtual/block/dm-4/dm/name = vg--one-pg
/sys/devices/virtual/block/dm-4/dm/uuid = LVM-abcdef
/sys/devices/virtual/block/dm-4/slaves/dm-1/x = 1
/sys/class/block/dm-1/dm/name = vg--one-pg_rimage_0
`

const lvsHead = `{"report":[{"lv":[{"lv_name":"pg","segtype":"raid1","sync_percent":"`

const poolText = `  pool: tank
 state: STATE
SCANconfig:

	NAME        STATE     READ WRITE CKSUM
	tank        STATE     0     0     0
	  mirror-0  STATE     0     0     0
	    sda     ONLINE    0     0     0
	    sdb     SIDE
	logs
	  sdc       ONLINE    0     0     0

errors: No known data errors
`

func pool(state, scan, side string) string {
	return strings.NewReplacer("STATE", state, "SCAN", scan, "SIDE", side).Replace(poolText)
}

const healthyBtrfs = "FS/devinfo/2/missing = 0\nFS/devinfo/2/error_stats = write_errs 0\\nread_errs 0"

// TestLook holds, for every kind of mirror, that its states are told apart by what the kernel and the tools say, and
// what is found.
func TestLook(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		tree, tool, dir string
		kind            Kind
		level           string
		state           State
		finds           string // what the first finding has; "": there is none
	}{
		"btrfs, whole":      {btrfsTree(healthyBtrfs), "", "/srv/my data/n1", Btrfs, "raid1", Whole, ""},
		"btrfs, one failed": {btrfsTree("FS/devinfo/2/missing = 0\nFS/devinfo/2/error_stats = write_errs 5560\\nread_errs 0\\nflush_errs 0\\ncorruption_errs 12"), "", "/srv/my data", Btrfs, "raid1", Degraded, "devid 2 lacks writes that failed"},
		"btrfs, both failed": {
			strings.Replace(btrfsTree("FS/devinfo/2/missing = 0\nFS/devinfo/2/error_stats = write_errs 5560"), "write_errs 0", "write_errs 3", 1), "", "/srv/my data", Btrfs, "raid1", Degraded,
			"no side of the mirror under /srv/my data (btrfs) has everything: devid 1 lacks writes that failed, devid 2 lacks",
		},
		"btrfs, one away":  {btrfsTree("FS/devinfo/2/missing = 1"), "", "/srv/my data", Btrfs, "raid1", Degraded, "devid 2 is missing"},
		"btrfs, repaired":  {btrfsTree("FS/devinfo/2/missing = 0\nFS/devinfo/2/error_stats = write_errs 0\\nread_errs 1\\ncorruption_errs 2"), "", "/srv/my data", Btrfs, "raid1", Errors, "devid 2 has 1 read error and 2 checksum errors; the other side had the data"},
		"btrfs, a scrub":   {btrfsTree(healthyBtrfs), "UUID: x\nStatus:           running\nBytes scrubbed:   7.50GiB  (75.00%)\nRate:             512.00MiB/s\n", "/srv/my data", Btrfs, "raid1", Resync, ""},
		"btrfs, replaced":  {strings.Replace(btrfsTree(healthyBtrfs), "exclusive_operation = none", "exclusive_operation = device replace", 1), "", "/srv/my data", Btrfs, "raid1", Resync, "device replace"},
		"btrfs, no mirror": {strings.ReplaceAll(btrfsTree(healthyBtrfs), "data/raid1", "data/single"), "", "/srv/my data", Btrfs, "single", None, ""},
		"btrfs, unchecked": {strings.Replace(btrfsTree(healthyBtrfs), "space_cache=v2", "nodatacow", 1), "", "/srv/my data", Btrfs, "raid1", Whole, "have no checksums"},
		"not below it":     {btrfsTree(healthyBtrfs), "", "/srv/my", Plain, "", Unknown, ""},

		"md, whole":   {mdTree + "/sys/devices/virtual/block/md0/md/dev-sdb1/state = in_sync\n/sys/devices/virtual/block/md0/md/sync_action = idle\n/sys/devices/virtual/block/md0/md/degraded = 0", "", "/srv/n1", MD, "raid1", Whole, ""},
		"md, failed":  {mdTree + "/sys/devices/virtual/block/md0/md/dev-sdb1/state = faulty\n/sys/devices/virtual/block/md0/md/degraded = 1", "", "/srv/n1", MD, "raid1", Degraded, "/dev/sdb1 is failed; the other side serves"},
		"md, removed": {mdTree + "/sys/devices/virtual/block/md0/md/degraded = 1", "", "/srv/n1", MD, "raid1", Degraded, "a side is missing"},
		"md, recovering": {
			mdTree + "/sys/devices/virtual/block/md0/md/dev-sdb1/state = spare\n/sys/devices/virtual/block/md0/md/dev-sdb1/slot = 1\n/sys/devices/virtual/block/md0/md/degraded = 1\n" +
				"/sys/devices/virtual/block/md0/md/sync_action = recover\n/sys/devices/virtual/block/md0/md/sync_completed = 256 / 1024\n/sys/devices/virtual/block/md0/md/sync_speed = 100000",
			"", "/srv/n1", MD, "raid1", Degraded, "/dev/sdb1 lacks writes",
		},
		"md, checking": {
			mdTree + "/sys/devices/virtual/block/md0/md/dev-sdb1/state = in_sync\n/sys/devices/virtual/block/md0/md/sync_action = check\n" +
				"/sys/devices/virtual/block/md0/md/sync_completed = 256 / 1024\n/sys/devices/virtual/block/md0/md/sync_speed = 100000",
			"", "/srv/n1", MD, "raid1", Resync, "",
		},
		"md, differs": {mdTree + "/sys/devices/virtual/block/md0/md/dev-sdb1/state = in_sync\n/sys/devices/virtual/block/md0/md/mismatch_cnt = 128", "", "/srv/n1", MD, "raid1", Errors, "differ in 128 places"},

		"lvm, whole":   {lvmTree, lvsHead + `100.00","lv_health_status":""},{"lv_name":"[pg_rimage_0]","devices":"/dev/sda(1)"},{"lv_name":"[pg_rimage_1]","devices":"/dev/sdb(1)"}]}]}`, "/srv", LVM, "raid1", Whole, ""},
		"lvm, partial": {lvmTree, lvsHead + `100.00","lv_health_status":"partial"},{"lv_name":"[pg_rimage_0]","devices":"/dev/sda(1)"},{"lv_name":"[pg_rimage_1]","devices":"[unknown](1)"}]}]}`, "/srv", LVM, "raid1", Degraded, "[unknown] is missing"},
		"lvm, copying": {lvmTree, lvsHead + `40.00","raid_sync_action":"recover","lv_health_status":""}]}]}`, "/srv", LVM, "raid1", Resync, "recover, 40.0 % done"},
		"lvm, not told": {
			lvmTree, "", "/srv", LVM, "raid", Unknown, "is not known: no tool",
		},

		"zfs, whole":    {zfsTree("ONLINE"), pool("ONLINE", "", "ONLINE    0 0 0"), "/srv", ZFS, "mirror", Whole, ""},
		"zfs, one away": {zfsTree("DEGRADED"), pool("DEGRADED", "", "UNAVAIL   3 1 0  cannot open"), "/srv", ZFS, "mirror", Degraded, "sdb is missing"},
		"zfs, checksums": {
			zfsTree("ONLINE"), pool("ONLINE", "  scan: scrub repaired 128K in 00:00:12 with 0 errors on Sun Nov  8 00:24:13 2026\n", "ONLINE    0 0 7"), "/srv", ZFS, "mirror", Errors, "sdb has 7 checksum errors",
		},
		"zfs, resilver": {
			zfsTree("ONLINE"), pool("ONLINE", "  scan: resilver in progress since Thu Nov 26 10:00:00 2026\n\t1.50G scanned at 200M/s, 800M issued at 100M/s, 3.00G total\n\t800M resilvered, 26.04% done, 00:00:22 to go\n", "ONLINE    0 0 0  (resilvering)"),
			"/srv", ZFS, "mirror", Resync, "resilver, 26.0 % done, 104.9 MB/s",
		},
		"zfs, no tool":         {zfsTree("ONLINE"), "", "/srv", ZFS, "", Unknown, ""},
		"zfs, no tool, broken": {zfsTree("DEGRADED"), "", "/srv", ZFS, "", Degraded, "a device is missing"},

		"a partition": {"/proc/self/mountinfo = 50 27 8:1 / / rw - ext4 /dev/sda1 rw\n/sys/dev/block/8:1 -> /sys/devices/pci/sda/sda1\n/sys/devices/pci/sda/sda1/partition = 1", "", "/var", Plain, "", None, ""},
		"a network":   {"/proc/self/mountinfo = 50 27 0:50 / / rw - nfs4 host:/export rw", "", "/var", Other, "nfs4", None, ""},
		"no mounts":   {"", "", "/var", Other, "", Unknown, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := recorded(t, tt.tree)
			if tt.tool != "" {
				r.Run = func(context.Context, string, ...string) ([]byte, error) { return []byte(tt.tool), nil }
			}
			v := r.Look(t.Context(), tt.dir)[0]
			if v.Kind != tt.kind || v.Level != tt.level || v.State != tt.state {
				t.Errorf("%s %q %s, want %s %q %s: %+v", v.Kind, v.Level, v.State, tt.kind, tt.level, tt.state, v)
			}
			found := v.Findings()
			switch {
			case tt.finds == "" && len(found) > 0:
				t.Errorf("found %+v", found)
			case tt.finds != "" && (len(found) == 0 || !strings.Contains(found[0].What, tt.finds) || found[0].Run == "" || found[0].Dir != tt.dir):
				t.Errorf("found %+v, want %q", found, tt.finds)
			}
		})
	}
}

func zfsTree(state string) string {
	return "/proc/self/mountinfo = 50 27 0:50 / /srv rw - zfs tank/pg rw\n/proc/spl/kstat/zfs/tank/state = " + state
}

// TestLayers holds that a look goes down through encryption and linear volumes, and that a volume over several devices
// is as safe as its weakest.
func TestLayers(t *testing.T) {
	t.Parallel()
	over := `
/proc/self/mountinfo = 50 27 253:1 / /srv rw - xfs /dev/mapper/crypt rw
/sys/dev/block/253:1 -> /sys/devices/virtual/block/dm-1
/sys/devices/virtual/block/dm-1/dm/uuid = CRYPT-LUKS2-x
/sys/devices/virtual/block/dm-1/slaves/dm-0/x = 1
/sys/class/block/dm-0 -> /sys/devices/virtual/block/dm-0
/sys/devices/virtual/block/dm-0/dm/uuid = LVM-x
/sys/devices/virtual/block/dm-0/slaves/md0/x = 1
/sys/class/block/md0 -> /sys/devices/virtual/block/md0
`
	array := strings.SplitN(mdTree, "\n", 4)[3] + "/sys/devices/virtual/block/md0/md/dev-sdb1/state = in_sync\n"
	if v := recorded(t, over+array).Look(t.Context(), "/srv")[0]; v.Kind != MD || v.State != Whole || !v.Mirrored {
		t.Errorf("a mirror below: %+v", v)
	}
	alone := "/sys/devices/virtual/block/dm-0/slaves/sdz/x = 1\n/sys/class/block/sdz -> /sys/devices/pci/sdz\n"
	if v := recorded(t, over+array+alone).Look(t.Context(), "/srv")[0]; v.Kind != Plain || v.Mirrored || v.Name != "/dev/sdz" {
		t.Errorf("a mirror and a single device below: %+v", v)
	}
	loop := over + "/sys/devices/virtual/block/dm-0/slaves/dm-0/x = 1\n"
	if v := recorded(t, loop).Look(t.Context(), "/srv")[0]; v.State == Whole {
		t.Errorf("layers that never end: %+v", v)
	}
}

// TestFilling holds that a resync is told with its rate, and that a comparison of whole sides is no finding.
func TestFilling(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Status:           running\nBytes scrubbed:   7.50GiB  (75.00%)\nRate:             512.00MiB/s\n": "scrub, 75.0 % done, 536.9 MB/s",
		"Status: finished\nRate: 1GiB/s": "",
		"Status: running\n":              "scrub",
	} {
		got := ""
		if f := parseScrub(text); f != nil {
			got = f.String()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	v := Volume{Kind: MD, Name: "/dev/md0", Mirrored: true, Filling: &Filling{What: "resync", Done: 0.5, Rate: 2e6}}
	v.judge()
	if found := v.Findings(); v.State != Resync || len(found) != 1 || !strings.HasSuffix(found[0].What, "is being filled: resync, 50.0 % done, 2.0 MB/s") {
		t.Errorf("%s: %+v", v.State, found)
	}
}

// TestFindings holds that directories on one volume are told of once.
func TestFindings(t *testing.T) {
	t.Parallel()
	v := Volume{Dir: "/a", Kind: MD, Name: "/dev/md0", Mirrored: true, Devices: []Device{{Name: "/dev/sda", State: "failed"}}}
	v.judge()
	w := v
	w.Dir = "/b"
	if got := Findings([]Volume{v, w}); len(got) != 1 || got[0].Dir != "/a" {
		t.Errorf("%+v", got)
	}
	if got := Findings([]Volume{{Kind: Plain, Name: "/dev/sda", State: None}}); got != nil {
		t.Errorf("a plain device: %+v", got)
	}
	good := Volume{Dir: "/srv/pg", Kind: Btrfs, Name: "/srv", Mirrored: true, State: Whole}
	bad := good
	bad.Dir, bad.Unchecked = "/srv/pg/pg_wal", true
	if got := Findings([]Volume{good, bad}); len(got) != 1 || !strings.Contains(got[0].What, "files in /srv/pg/pg_wal have no checksums") {
		t.Errorf("one directory of two without checksums: %+v", got)
	}
}

// TestAdviceIsOneCommand holds that a name with a space, or with a command of its own, stays one word of the command
// that an administrator copies.
func TestAdviceIsOneCommand(t *testing.T) {
	t.Parallel()
	for _, v := range []Volume{
		{Kind: Btrfs, Mount: "/srv/a 'b;touch c"},
		{Kind: MD, Name: "/srv/a 'b;touch c"},
		{Kind: LVM, Name: "/srv/a 'b;touch c"},
		{Kind: ZFS, Name: "/srv/a 'b;touch c"},
	} {
		for _, run := range []string{v.mend(), v.compare()} {
			if said := strings.ReplaceAll(run, `/srv/a '\''b;touch c'`, ""); strings.Contains(said, "touch") {
				t.Errorf("%s: %s", v.Kind, run)
			}
		}
	}
	if got := (Volume{Kind: Btrfs, Mount: "/srv/pg-1", State: Errors}).mend(); strings.Contains(got, "'") {
		t.Errorf("a plain name: %s", got)
	}
}

// TestVolumeIsSmall holds that volumes fit into the status of a node, which has a limit of 32 KB, also where each has
// as many devices as are looked at.
func TestVolumeIsSmall(t *testing.T) {
	t.Parallel()
	v := Volume{Dir: "/srv/postgresql/data", Mount: "/srv/postgresql", Kind: ZFS, Name: "tank", Level: "mirror", Mirrored: true, State: Whole}
	for i := range maxDevices {
		v.Devices = append(v.Devices, Device{Name: fmt.Sprintf("ata-WDC_WUH721414ALE6L4_9JG%05dT", i), State: "ok"})
	}
	if b, err := json.Marshal(v); err != nil || len(b) > 6<<10 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// TestAsk holds that a tool is run once in a while, not at each look, and that one that fails is as well.
func TestAsk(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, errors.New("refused")} {
		ran := 0
		r := recorded(t, lvmTree)
		r.Run = func(context.Context, string, ...string) ([]byte, error) {
			ran++
			return []byte(lvsHead + `100.00"}]}]}`), err
		}
		first := r.Look(t.Context(), "/srv")
		if second := r.Look(t.Context(), "/srv"); ran != 1 || !reflect.DeepEqual(first, second) {
			t.Errorf("%d runs; %+v, then %+v", ran, first, second)
		}
	}
}

// TestAskThatWasEnded holds that the end of a look is not taken for an answer of the tool by later looks.
func TestAskThatWasEnded(t *testing.T) {
	t.Parallel()
	r := recorded(t, lvmTree)
	ctx, cancel := context.WithCancel(t.Context())
	r.Run = func(ctx context.Context, _ string, _ ...string) ([]byte, error) {
		cancel()
		return []byte(lvsHead + `100.00"}]}]}`), ctx.Err()
	}
	_ = r.Look(ctx, "/srv")
	r.Run = func(context.Context, string, ...string) ([]byte, error) { return []byte(lvsHead + `100.00"}]}]}`), nil }
	if v := r.Look(t.Context(), "/srv")[0]; v.State != Whole {
		t.Errorf("%+v", v)
	}
}

// TestRunTool holds that a tool has a limit of time and of output, and that its error has what it said.
func TestRunTool(t *testing.T) {
	t.Parallel()
	if _, err := runTool(t.Context(), "no-such-tool-of-storage"); err == nil || !strings.Contains(err.Error(), "there is no no-such-tool-of-storage here") {
		t.Errorf("a tool that is not there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := runTool(ctx, "sleep", "60"); err == nil || !strings.Contains(err.Error(), "did not end within") {
		t.Errorf("a tool that hangs: %v", err)
	}
	if b, err := runTool(t.Context(), "head", "-c", fmt.Sprint(2*maxText), "/dev/zero"); err != nil || len(b) != maxText {
		t.Errorf("much output: %d bytes, %v", len(b), err)
	}
	if _, err := runTool(t.Context(), "ls", "/no/such/file"); err == nil || !strings.Contains(err.Error(), "No such file") {
		t.Errorf("a refusal: %v", err)
	}
}

// FuzzParsers holds that no text of a tool or of the kernel ends the program.
func FuzzParsers(f *testing.F) {
	f.Add(pool("ONLINE", "  scan: resilver in progress\n\t1% done, at 3M/s\n", "ONLINE 0 0 0"))
	f.Add(lvsHead + `40.00","lv_health_status":"partial"},{"lv_name":"[pg_rimage_0]","devices":"(1)"}]}]}`)
	f.Add("44 27 0:39 / /srv/my\\040data rw - btrfs /dev/loop0 rw")
	f.Add("Status: running\nBytes scrubbed: 1 (3%)\nRate: 1.0TiB/s")
	f.Fuzz(func(_ *testing.T, text string) {
		v := Volume{Name: "tank"}
		_ = parsePool(text, &v)
		_ = parseLVS([]byte(text), "pg", &v)
		_ = parseMounts(text)
		_ = parseScrub(text)
		v.judge()
		_ = v.Findings()
	})
}
