package endpointbench

import (
	"context"
	"io"

	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/measure/goals"
)

// EndpointParts are what can be asked for alone.
var EndpointParts = []string{"wan-good", "wan-bad", "random", "commits", "loaded", "bulk", "beside", "change", "idle", "lan", "zstd"}

type EndpointOptions struct {
	Seed   uint64
	Rounds int
	Only   []string
	Port   int
}

// endpointSamples is all that a run found.
type endpointSamples struct {
	Version    string                  `json:"version"`
	Kernel     string                  `json:"kernel"`
	Congestion string                  `json:"congestion_controls"`
	Cores      int                     `json:"cores"`
	Seed       uint64                  `json:"seed"`
	Runs       []tunnelRun             `json:"runs"`
	Times      map[string][]float64    `json:"times_ms"`
	Links      map[string]*link.Status `json:"links"` // of ours, at the primary, at the end of each part
	Figures    []goals.Figure          `json:"figures"`
}

type tunnelRun struct {
	Link    string  `json:"link"`
	Arm     string  `json:"arm"`
	Random  bool    `json:"random,omitempty"`
	Seconds float64 `json:"seconds"`
	Rows    int     `json:"rows"` // committed; fewer than asked for: the run was cut short
}

type EndpointBench struct {
	endpointSamples
	O        EndpointOptions
	Progress io.Writer
	net      *linkem.Remote
	stage    *stage
}

type endpointPart struct {
	name    string
	figures []string
	run     func(context.Context) error
}

// quotients divides run by run, or by the only run there is.
func quotients(ours, theirs []float64) []float64 {
	var all []float64
	for i, v := range ours {
		all = append(all, v/theirs[min(i, len(theirs)-1)])
	}
	return all
}
