package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/bench/experiment"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// Minutes logs the runs of the tunnel as the published script does: a line timestamp,minutes for each run, with the arm
// and the payload after them. At the end it logs the averages and the difference of the second arm.
type Minutes struct {
	W    io.Writer
	arms []string
	Took map[workload.Payload]map[string][]float64
	err  error
}

// Run logs one run that began at that time. Averages returns its errors.
func (m *Minutes) Run(at time.Time, took time.Duration, payload workload.Payload, arm string) {
	if !slices.Contains(m.arms, arm) {
		m.arms = append(m.arms, arm)
	}
	if m.Took[payload] == nil {
		m.Took[payload] = map[string][]float64{}
	}
	m.Took[payload][arm] = append(m.Took[payload][arm], took.Minutes())
	m.line(at.UTC().Format("2006-01-02T15:04:05.000Z"), took.Minutes(), arm, payload)
}

func (m *Minutes) line(what string, v float64, arm string, payload workload.Payload) {
	_, err := fmt.Fprintf(m.W, "%s,%.9f,%s,%s\n", what, v, arm, payload)
	m.err = errors.Join(m.err, err)
}

// Averages logs the average of each arm by payload, and the difference of two arms in percent of the first. It returns
// the errors of all writes so far.
func (m *Minutes) Averages() error {
	slices.Sort(m.arms)
	if i := slices.Index(m.arms, "OFF"); i > 0 {
		m.arms[0], m.arms[i] = m.arms[i], m.arms[0] // the other arm is compared with it
	}
	for _, payload := range slices.Sorted(maps.Keys(m.Took)) {
		var means []float64
		for _, arm := range m.arms {
			if len(m.Took[payload][arm]) == 0 {
				continue // the measurement was ended early
			}
			sum := 0.0
			for _, v := range m.Took[payload][arm] {
				sum += v
			}
			means = append(means, sum/float64(len(m.Took[payload][arm])))
			m.line("average", means[len(means)-1], arm, payload)
		}
		if len(means) == 2 {
			m.line("difference_pct", 100*(means[0]-means[1])/means[0], m.arms[1], payload)
		}
	}
	return m.err
}

// TunnelExperiment returns the experiment of compression on links of the shape link. A group whose links cannot be
// shaped is refused.
func TunnelExperiment(o experiment.TunnelOptions, link string) Experiment {
	return Experiment{"tunnel", "The tunnel", "What does compression give?", func(ctx context.Context, b *experiment.Bed) (benchreport.Experiment, error) {
		if b.Group != nil {
			if b.Links == nil {
				return benchreport.Experiment{}, errors.New("its links cannot be shaped, and without a narrow link there is nothing to see: it needs a lab with network namespaces (root)")
			}
			if err := b.Links.Shape(ctx, link); err != nil {
				return benchreport.Experiment{}, err
			}
			o.Link = link
		}
		return b.Tunnel(ctx, o)
	}}
}
