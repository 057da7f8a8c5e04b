package suite

import (
	"time"

	"github.com/coteriedb/coterie/internal/bench/bed"
	"github.com/coteriedb/coterie/internal/bench/experiment"
	"github.com/coteriedb/coterie/internal/bench/seedbench"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// AllBedRuns returns the runs of coterie bench all: experiments that need limits on the nodes, and those that need
// links. quick chooses sizes for less than ten minutes, published those of the published experiments.
func AllBedRuns(quick, published bool) []BedRun {
	routing := experiment.RoutingOptions{Threads: experiment.PublishedThreads, Duration: 3 * time.Second, WarmUp: 300 * time.Millisecond, Rows: 200_000}
	mix := experiment.TproccOptions{Users: []int{1, 4, 12}, Warehouses: 2, Duration: 5 * time.Second, WarmUp: 500 * time.Millisecond}
	commit := experiment.CommitOptions{Cells: MatrixCells(100_000), Compression: []string{"OFF", "ZSTD"}}
	tunnel := experiment.TunnelOptions{Tunnel: workload.PublishedTunnel, Payloads: []workload.Payload{workload.PayloadConstant, workload.PayloadText, workload.PayloadRandom}}
	outage := experiment.FailoverOptions{Actions: experiment.Actions, Runs: 5, Clients: 8, Every: 10 * time.Millisecond, Before: 3 * time.Second, After: 3 * time.Second}
	tunnel.Tunnel.Pipelined = true
	limits, limitsOfMix := bed.Need{CPU: 0.5}, bed.Need{CPU: 0.5}
	if published {
		mix = experiment.TproccOptions{Users: experiment.PublishedThreads, Warehouses: PublishedWarehouses, Transactions: PublishedTransactions, WarmUp: mix.WarmUp}
		limitsOfMix.Bytes = bed.Loaded(mix.Warehouses * 110 << 20)
		routing.Iterations, routing.Duration, routing.Rows, commit.Cells = 1000, 0, PublishedRoutingRows, experiment.PublishedCells
		limits.Memory, limits.Bytes = PublishedMemory, bed.Loaded(routing.Rows*workload.RowBytes)
	}
	if quick {
		routing.Threads, routing.Duration, routing.Rows = []int{1, 4, 12}, 2*time.Second, 100_000
		commit.Cells = []experiment.Cell{{Inserts: 1, Rows: 20_000}, {Inserts: 20, Rows: 1000}, {Inserts: 400, Rows: 1}}
		tunnel.Tunnel.Rows = 2000
		outage.Actions, outage.Runs = []experiment.Action{experiment.Kill, experiment.Planned}, 3
	}
	first := BedRun{limits, []Experiment{RoutingExperiment(routing, "", "")}}
	if !quick && !published {
		first.Experiments = append(first.Experiments, TproccExperiment(mix))
	}
	runs := []BedRun{first}
	if published { // the published conditions limit memory for the reads, and do not mention it for the mix
		runs = append(runs, BedRun{limitsOfMix, []Experiment{TproccExperiment(mix)}})
	}
	copied := seedbench.SeedingOptions{SizeMB: 1024, Rounds: 1, Only: []string{"metro", "wan"}}
	switch {
	case quick:
		copied.SizeMB, copied.Only = 64, []string{"wan"}
	case published:
		copied.SizeMB, copied.OtherwiseMB = seedbench.PublishedSeedMB, copied.SizeMB
	}
	linked := bed.Need{Network: true, Links: CommitLink, Bytes: bed.Loaded(2 * Largest(commit.Cells) * workload.RowBytes)}
	return append(runs, BedRun{linked, []Experiment{CommitExperiment(commit, CommitLink), TunnelExperiment(tunnel, TunnelLink), OutageExperiment(outage, CommitLink), seedingExperiment(copied)}})
}
