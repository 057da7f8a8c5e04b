package catalog

import (
	"time"
)

// counterViews are what SQL Server counts and waits for.
var counterViews = []view{
	{
		schema: "sys", name: "dm_os_wait_stats",
		about:   "What commits waited for their secondaries on each node since its agent started: one wait for each block of WAL, from leaving the server until as many members had flushed it as a commit waits for.",
		columns: cols("wait_type t, waiting_tasks_count i8, wait_time_ms i8, max_wait_time_ms i8, signal_wait_time_ms i8!, node t"),
		rows: func(f Facts) [][]any {
			var out [][]any
			for _, r := range f.Group.Replicas {
				if c := f.Nodes[r.ID].Commits; c != nil {
					out = append(out, []any{"HADR_SYNC_COMMIT", int64(c.Waits), c.Waited.Milliseconds(), c.Max.Milliseconds(), nil, string(r.ID)})
				}
			}
			return out
		},
	},
	{
		schema: "sys", name: "dm_os_performance_counters",
		about:   "Counters of replicas and databases. Those of type 272696576 grow from the start of the primary's agent on: two readings make a rate. Sync Commit is of the last minute or two, in microseconds.",
		columns: cols("object_name t, counter_name t, instance_name t, cntr_value i8, cntr_type i4"),
		rows:    counters,
	},
}

// The types of counters, as SQL Server numbers them: a value, and a sum of which two readings make a rate.
const (
	counterValue = int64(65792)
	counterSum   = int64(272696576)
)

func counters(f Facts) [][]any {
	var out [][]any
	add := func(object, counter, instance string, typ, v int64) {
		out = append(out, []any{"Coterie:" + object, counter, instance, v, typ})
	}
	leader := f.Record.Epoch.Leader
	for _, r := range f.members() {
		if !r.HasData() || r.ID == leader {
			continue
		}
		if l, ok := f.linkTo(r.ID); ok {
			name := f.Group.Name + ":" + string(r.ID)
			add("Availability Replica", "Bytes Sent to Replica/sec", name, counterSum, int64(l.Sent))
			add("Availability Replica", "Bytes Sent to Transport/sec", name, counterSum, int64(l.Encoded))
			add("Availability Replica", "Bytes Received from Replica/sec", name, counterSum, int64(l.Received))
			add("Availability Replica", "Resent Bytes/sec", name, counterSum, int64(l.Resent))
		}
		p := f.positionsOf(r)
		for _, d := range f.databases() {
			name := d.Name + ":" + string(r.ID)
			add("Database Replica", "Log Send Queue", name, counterValue, behind(f.head(), p.flushed))
			add("Database Replica", "Recovery Queue", name, counterValue, behind(p.flushed, p.replayed))
			add("Database Replica", "Redo Bytes Remaining", name, counterValue, int64(max(p.flushed, p.replayed)-p.replayed))
			add("Database Replica", "Redone Bytes/sec", name, counterValue, int64(f.Nodes[r.ID].LogRate))
			add("Database Replica", "Log Bytes Received/sec", name, counterSum, int64(p.flushed))
		}
	}
	if c := f.Nodes[leader].Commits; c != nil {
		for _, d := range f.databases() { // one log carries all of them
			add("Database Replica", "Mirrored Write Transactions/sec", d.Name, counterSum, int64(c.Waits))
			add("Database Replica", "Transaction Delay", d.Name, counterSum, c.Waited.Milliseconds())
		}
		for _, x := range []struct {
			name string
			d    time.Duration
		}{{"mean", c.Mean}, {"p50", c.P50}, {"p95", c.P95}, {"p99", c.P99}} {
			add("Sync Commit", "Delay "+x.name+" (us)", string(leader), counterValue, x.d.Microseconds())
		}
	}
	return out
}
