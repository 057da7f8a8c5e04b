package endpointbench

import (
	"context"
	"io"

	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/measure/goals"
)

// EndpointParts are the parts of the measurement, in the order in which they run.
var EndpointParts = []string{"wan-good", "wan-bad", "random", "commits", "loaded", "bulk", "beside", "change", "idle", "lan", "zstd"}

// EndpointOptions are the flags of coterie bench endpoint.
type EndpointOptions struct {
	Seed   uint64   // of the links' randomness
	Rounds int      // how often each arm runs
	Only   []string // names of EndpointParts; none: all
	Port   int      // first of four ports on this host, for the part lan
}

// Samples are the raw measurements of a run.
type Samples struct {
	Version    string                  `json:"version"`
	Kernel     string                  `json:"kernel"`
	Congestion string                  `json:"congestion_controls"`
	Cores      int                     `json:"cores"`
	Seed       uint64                  `json:"seed"`
	Runs       []tunnelRun             `json:"runs"`
	Times      map[string][]float64    `json:"times_ms"`
	Links      map[string]*link.Status `json:"links"` // our link as the primary sees it at the end of each part
	Figures    []goals.Figure          `json:"figures"`
}

type tunnelRun struct {
	Link    string  `json:"link"`
	Arm     string  `json:"arm"`
	Random  bool    `json:"random,omitempty"`
	Seconds float64 `json:"seconds"`
	Rows    int     `json:"rows"` // committed; fewer than requested if the run was cut short
}

// EndpointBench measures the link between replicas beside other ways to replicate.
type EndpointBench struct {
	Samples
	O        EndpointOptions
	Progress io.Writer
	net      *linkem.Remote
	pair     *Pair
}

type endpointPart struct {
	name    string
	figures []string
	run     func(context.Context) error
}

// quotients divides ours by theirs, run by run. If theirs has fewer runs, its last one serves for the rest.
func quotients(ours, theirs []float64) []float64 {
	var all []float64
	for i, v := range ours {
		all = append(all, v/theirs[min(i, len(theirs)-1)])
	}
	return all
}
