package parameters

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestDemand holds that only shared memory that the host has not is refused, and that the sum is told with its terms.
func TestDemand(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	usual := Demand{SharedBuffers: gib, WALBuffers: 16 * mib, Connections: 100, WorkMem: 4 * mib, Maintenance: 64 * mib, Workers: 3, Host: 4 * gib}
	for name, c := range map[string]struct {
		change  func(*Demand)
		refused string
		warned  string
	}{
		"usual":          {change: func(*Demand) {}},
		"all of it":      {change: func(d *Demand) { d.Host = d.Sum() }},
		"sessions":       {change: func(d *Demand) { d.Connections = 1000 }, warned: "1024 MiB + wal_buffers 16 MiB + max_connections 1000 x (5 MiB + work_mem 4 MiB) + autovacuum_max_workers 3 x 64 MiB = 10232 MiB, and the host has 4096 MiB"},
		"work_mem":       {change: func(d *Demand) { d.WorkMem = 100 * mib }, warned: "work_mem 100 MiB"},
		"small work_mem": {change: func(d *Demand) { d.WorkMem, d.Host = 64<<10, gib }, refused: "shared_buffers 1024 MiB + wal_buffers 16 MiB = 1040 MiB, and this host has 1024 MiB", warned: "work_mem 0.1 MiB"},
		"maintenance":    {change: func(d *Demand) { d.Maintenance = gib }, warned: "3 x 1024 MiB"},
		"shared":         {change: func(d *Demand) { d.SharedBuffers = 4 * gib }, refused: "4096 MiB + wal_buffers 16 MiB = 4112 MiB", warned: "= 5204 MiB"},
		"unknown host":   {change: func(d *Demand) { d.Host, d.Connections = 0, 10000 }},
	} {
		d := usual
		c.change(&d)
		if err := d.Refused(); (err != nil) != (c.refused != "") || err != nil && (fail.KindOf(err) != fail.Refused || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%s: refused %v", name, err)
		}
		if got := d.Warning(); (got != "") != (c.warned != "") || !strings.Contains(got, c.warned) {
			t.Errorf("%s: warned %q", name, got)
		}
	}
}
