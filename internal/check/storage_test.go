package check

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/storage"
)

// TestFindStorage holds that each state of a mirror has its level, and that directories on one volume are told of once.
func TestFindStorage(t *testing.T) {
	t.Parallel()
	dir, root := t.TempDir(), t.TempDir()
	r := &storage.Reader{Root: root, Run: func(context.Context, string, ...string) ([]byte, error) { return nil, errors.New("no tool") }}
	if found, err := FindStorage(t.Context(), dir, r); err != nil || len(found) != 1 || found[0].Level != OK || !strings.Contains(found[0].What, "there is no node") {
		t.Errorf("without a node: %+v, %v", found, err)
	}
	array := "/sys/devices/virtual/block/md0/md"
	for file, text := range map[string]string{
		filepath.Join(dir, config.File): "", filepath.Join(dir, "pgdata/pg_wal/x"): "", filepath.Join(dir, "etcd/x"): "",
		filepath.Join(root, "/proc/self/mountinfo"): "50 1 9:0 / / rw - xfs /dev/md0 rw\n",
		filepath.Join(root, array, "level"):         "raid1\n", filepath.Join(root, array, "raid_disks"): "2\n",
		filepath.Join(root, array, "dev-sda/state"): "in_sync\n", filepath.Join(root, array, "dev-sdb/state"): "in_sync\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	at := filepath.Join(root, "/sys/dev/block")
	if err := errors.Join(os.MkdirAll(at, 0o700), os.Symlink(filepath.Join(root, "/sys/devices/virtual/block/md0"), filepath.Join(at, "9:0"))); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		side  string
		worst Level
		says  string
	}{
		"whole":    {"in_sync", OK, "a mirror of md (raid1), whole: /dev/sda ok, /dev/sdb ok"},
		"degraded": {"faulty", Problem, "is degraded: /dev/sdb is failed; the other side serves"},
	} {
		if err := os.WriteFile(filepath.Join(root, array, "dev-sdb/state"), []byte(tt.side), 0o600); err != nil {
			t.Fatal(err)
		}
		found, err := FindStorage(t.Context(), dir, r)
		last := Finding{}
		if len(found) > 0 {
			last = found[len(found)-1]
		}
		if err != nil || Worst(found) != tt.worst || len(found) > 2 || !strings.Contains(last.What, tt.says) || tt.worst == Problem && (last.Run == "" || last.Why == "") {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
	}
	for _, tt := range []struct {
		v    storage.Volume
		want Level
		says string
	}{
		{storage.Volume{Dir: "/d", Kind: storage.Plain, Name: "/dev/sda", State: storage.None}, OK, "/d stands on /dev/sda, which is no mirror"},
		{storage.Volume{Dir: "/d", Kind: storage.Other, Name: "host:/x", Level: "nfs4", State: storage.None}, OK, "of the type nfs4"},
		{storage.Volume{Dir: "/d", Kind: storage.Other, Why: "no mounts", State: storage.Unknown}, OK, "is not known: no mounts"},
		{storage.Volume{Dir: "/d", Kind: storage.LVM, Name: "vg/lv", Mirrored: true, Why: "no lvs", State: storage.Unknown}, Failed, "a mirror of lvm"},
		{storage.Volume{Dir: "/d", Kind: storage.Btrfs, Mirrored: true, State: storage.Errors, Devices: []storage.Device{{Name: "x", State: "ok", Corruption: 1}}}, Warning, "x ok"},
		{storage.Volume{Dir: "/d", Kind: storage.MD, Mirrored: true, State: storage.Resync, Filling: &storage.Filling{What: "check", Done: 0.5}}, OK, "check, 50.0 % done"},
	} {
		found := judgeStorage([]storage.Volume{tt.v})
		if Worst(found) != tt.want || !strings.Contains(found[0].What, tt.says) {
			t.Errorf("%+v: %+v", tt.v, found)
		}
	}
}
