package labcmd

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/cgroup"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lib/units"
)

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]int64{"512MiB": 512 << 20, "1GiB": 1 << 30, "0.5GiB": 512 << 20, "8388608": 8 << 20, "16 MB": 16_000_000} {
		if got, err := units.ParseBytes(in, cgroup.MinMemory); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "MiB", "12", "-512MiB", "512 apples", "1e40GiB", "NaN", "1MiB"} {
		if got, err := units.ParseBytes(in, cgroup.MinMemory); err == nil {
			t.Errorf("%q was taken for %d", in, got)
		}
	}
}

func TestMachineFlags(t *testing.T) {
	var o lab.Options
	if err := (&machine{disks: true, cpu: 0.5, memory: "512MiB"}).set(&o); err != nil || !o.Disks || o.Caps.CPU != 0.5 || o.Caps.Memory != 512<<20 {
		t.Errorf("%+v %v", o, err)
	}
	o = lab.Options{Net: lab.NetNamespaces, Links: linkem.Profiles["wan-bad"]}
	if err := (&machine{mbps: 100}).set(&o); err != nil || o.Links.RateBits != 100_000_000 || o.Links.Delay == 0 {
		t.Errorf("%+v %v", o, err)
	}
	o.Net = lab.NetLoopback
	for want, m := range map[string]machine{"loopback": {mbps: 100}, "choose": {cpu: 0.0001}, "above 0": {cpu: -1}, "MiB": {memory: "lots"}} {
		if err := m.set(&o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", m, err)
		}
	}
}
