package experiment

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"

	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// diskReads counts the bytes that each server requested from its kernel, the bytes that came from the disk, and how
// often each server answered.
type diskReads struct {
	servers map[string]string                  // connection strings, by name
	names   map[string]string                  // of replicas, by the names that their servers report
	mb      map[string]float64                 // MB requested, by arm, threads and server
	disk    map[string]float64                 // MB from the disk, the same
	seconds map[string]float64                 // by arm and threads
	bytes   func() map[string]map[string]int64 // Bed.ReadBytes
}

func newDiskReads(ctx context.Context, b *Bed) *diskReads {
	d := &diskReads{servers: map[string]string{}, mb: map[string]float64{}, disk: map[string]float64{}, seconds: map[string]float64{}, bytes: b.ReadBytes}
	if b.Group == nil {
		return d
	}
	members, err := b.Group.Members(ctx)
	if err != nil {
		return d
	}
	for _, m := range members {
		if dsn := b.Group.Own(m); dsn != "" {
			d.servers[m] = dsn
		}
	}
	d.names = b.names(ctx)
	return d
}

// names returns the names of the replicas, by the names that their servers report. Unreachable servers are left out.
func (b *Bed) names(ctx context.Context) map[string]string {
	names := map[string]string{}
	members, err := b.Group.Members(ctx)
	if err != nil {
		return names
	}
	for _, m := range members {
		if dsn := b.Group.Own(m); dsn != "" {
			if server, err := text(ctx, dsn, workload.ServerName); err == nil {
				names[server] = m
			}
		}
	}
	return names
}

// answered returns how often each replica answered.
func (d *diskReads) answered(r method.Result) map[string]int64 {
	by := map[string]int64{}
	for server, n := range r.Servers {
		by[cmp.Or(d.names[server], server)] += n
	}
	return by
}

// now returns the megabytes read so far, by server. Unreachable servers are left out.
func (d *diskReads) now(ctx context.Context) map[string]float64 {
	mb := map[string]float64{}
	for name, dsn := range d.servers {
		v, err := number(ctx, dsn, "select coalesce(sum(blks_read), 0)::float8 * current_setting('block_size')::float8 / 1e6 from pg_stat_database")
		if err == nil {
			mb[name] = v
		}
	}
	return mb
}

// follow counts the bytes that the disks read until end is called. Call end before the clients disconnect: the reads of
// a server's process are known only as long as the process lives.
func (d *diskReads) follow(arm string, threads int) (end func()) {
	if d.bytes == nil {
		return nil
	}
	before := d.bytes()
	return func() {
		for name, processes := range d.bytes() {
			for pid, n := range processes {
				d.disk[arm+strconv.Itoa(threads)+name] += float64(n-before[name][pid]) / 1e6
			}
		}
	}
}

// note adds the reads of the servers in a run of k, an arm and its threads.
func (d *diskReads) note(k string, before, after map[string]float64, r method.Result) {
	d.seconds[k] += r.Elapsed.Seconds()
	for name, v := range after {
		if was, ok := before[name]; ok {
			d.mb[k+name] += v - was
		}
	}
}

// table shows the answers and the reads of each replica.
func (d *diskReads) table(o RoutingOptions, arms []arm, samples [2]map[int]*sample) report.Table {
	t := report.Table{Title: "By replica", Columns: []report.Column{{Name: "threads"}, {Name: "arm"}}}
	names := map[string]bool{}
	for name := range d.servers {
		names[name] = true
	}
	for _, side := range samples {
		for _, s := range side {
			for _, r := range s.results {
				for name := range d.answered(r) {
					names[name] = true
				}
			}
		}
	}
	sorted := slices.Sorted(maps.Keys(names))
	for _, name := range sorted {
		t.Columns = append(t.Columns, report.Column{Name: name + " answered", Unit: "%"}, report.Column{Name: name + " asked its kernel for", Unit: "MB/s"})
		if d.bytes != nil {
			t.Columns = append(t.Columns, report.Column{Name: name + " read from disk", Unit: "MB/s"})
		}
	}
	for _, n := range o.Threads {
		for i, a := range arms {
			k, row := a.name+strconv.Itoa(n), []any{strconv.Itoa(n), a.name}
			for _, name := range sorted {
				row = append(row, samples[i][n].mean(func(r method.Result) float64 { return 100 * float64(d.answered(r)[name]) / float64(max(r.OK, 1)) }), d.rate(d.mb, k, name))
				if d.bytes != nil {
					row = append(row, d.rate(d.disk, k, name))
				}
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

func (d *diskReads) rate(mb map[string]float64, k, name string) any {
	if d.servers[name] == "" || d.seconds[k] <= 0 {
		return nil
	}
	return mb[k+name] / d.seconds[k]
}
