package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/listener/offload/offloadtest"
)

// The data paths of a session, as the metrics name them, and the least share of the sessions that each must carry for a
// while in a long run. Every session begins with a loop or with goroutines, and the kernel takes some over: those of
// clients without TLS at the node whose server they get.
const (
	byKernel     = "kernel"
	byLoop       = "loop"
	byGoroutines = "goroutines"
)

var leastShares = map[string]float64{byKernel: 0.05, byLoop: 0.2, byGoroutines: 0.2}

// How pgx sends the statements of a plain session: each text with its values in it, or as an unnamed statement.
const (
	valuesInText      = "simple_protocol"
	unnamedStatements = "exec"
)

// plain returns the connection string of a client without TLS. The kernel may relay its requests.
func plain(dsn, mode string) string { return dsn + "&sslmode=disable&default_query_exec_mode=" + mode }

// withPlain returns the connection strings, and after them each again for a client without TLS.
func withPlain(dsns []string) []string {
	all := append([]string{}, dsns...)
	for i, dsn := range dsns {
		all = append(all, plain(dsn, []string{valuesInText, unnamedStatements}[i%2]))
	}
	return all
}

// pathCount sums up what the nodes of a group count of their data paths. The counters of a node begin anew with each
// agent: what one counted after the last look is lost with it.
type pathCount struct {
	end context.CancelFunc
	all sync.WaitGroup

	mu  sync.Mutex
	sum map[string]float64 // by metric, of all nodes and all agents; guarded by mu
}

// counted are the metrics that a pathCount sums up.
var counted = map[string]string{
	`coterie_sessions_carried_total{path="kernel"}`:     byKernel,
	`coterie_sessions_carried_total{path="loop"}`:       byLoop,
	`coterie_sessions_carried_total{path="goroutines"}`: byGoroutines,
	"coterie_sessions_lent_to_kernel_total":             "lent",
	"coterie_requests_by_kernel_total":                  "requests",
}

// countPaths begins to look at every node, a few times a second.
func (g *group) countPaths(t *testing.T) *pathCount {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &pathCount{end: cancel, sum: map[string]float64{}}
	for _, n := range g.Nodes() {
		if n.Witness {
			continue
		}
		p.all.Go(func() {
			for last := map[string]float64{}; ; {
				p.add(last, g.metrics(t, n.Name))
				select {
				case <-ctx.Done():
					p.add(last, g.metrics(t, n.Name)) // the clients have ended since
					return
				case <-time.After(300 * time.Millisecond):
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); p.all.Wait() })
	return p
}

// add adds what a node has counted since the last look. A counter that is smaller is another agent's.
func (p *pathCount) add(last map[string]float64, metrics string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for line := range strings.Lines(metrics) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		what, ok := counted[name]
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		if n < last[what] {
			last[what] = 0
		}
		p.sum[what] += n - last[what]
		last[what] = n
	}
}

// judge ends the count, and checks that each path carried its share. It returns a line for the record.
func (p *pathCount) judge(t *testing.T) string {
	t.Helper()
	p.end()
	p.all.Wait()
	all := p.sum[byLoop] + p.sum[byGoroutines]
	var told []string
	for _, path := range []string{byLoop, byGoroutines, byKernel} {
		share := p.sum[path] / max(all, 1)
		told = append(told, fmt.Sprintf("%s %.0f (%.0f %%, at least %.0f %%)", path, p.sum[path], 100*share, 100*leastShares[path]))
		if share >= leastShares[path] {
			continue
		}
		if path == byKernel && offloadtest.Missing() != nil {
			t.Run("the kernel's share", offloadtest.Need) // is skipped with the reason, or fails
			continue
		}
		t.Errorf("the path %s carried %.0f of %.0f sessions, want at least %.0f %%", path, p.sum[path], all, 100*leastShares[path])
	}
	return fmt.Sprintf("of %.0f sessions the data paths carried, for a while: %s; the kernel took sessions over %.0f times and relayed at least %.0f of their requests",
		all, strings.Join(told, ", "), p.sum["lent"], p.sum["requests"])
}
