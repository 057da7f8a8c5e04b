package seedbench

import (
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/lib/buildinfo"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
)

// trackEvery is the interval at which processor and network are sampled during a copy.
const trackEvery = 200 * time.Millisecond

// track samples what a copy costs over time.
type track struct {
	began  time.Time
	quit   chan struct{}
	done   chan struct{}
	curves []*curve
}

// curve is a rate over time: how fast a counter rises.
type curve struct {
	side   string  // the side that it belongs to; empty: both
	says   string  // the unit in words
	unit   float64 // the value that a rise of one per second is drawn as
	count  func() float64
	was    float64
	points [][2]float64 // seconds and value
}

// startTrack begins to sample the processor seconds of both sides and the bytes on the wire.
func startTrack(source, target func() float64, wire func() int64) *track {
	t := &track{began: time.Now(), quit: make(chan struct{}), done: make(chan struct{}), curves: []*curve{
		{side: ": source", says: "% of a processor", unit: 100, count: source},
		{side: ": target", says: "% of a processor", unit: 100, count: target},
		{says: "MB/s on the wire", unit: 1e-6, count: func() float64 { return float64(wire()) }},
	}}
	for _, c := range t.curves {
		c.was = c.count()
	}
	go t.run()
	return t
}

func (t *track) run() {
	defer close(t.done)
	tick := time.NewTicker(trackEvery)
	defer tick.Stop()
	was := t.began
	for {
		select {
		case <-t.quit:
			return
		case now := <-tick.C:
			for _, c := range t.curves {
				n := c.count()
				// A process that has ended counts nothing.
				c.points = append(c.points, [2]float64{now.Sub(t.began).Seconds(), max(0, c.unit*(n-c.was)/now.Sub(was).Seconds())})
				c.was = n
			}
			was = now
		}
	}
}

func (t *track) stop() {
	close(t.quit)
	<-t.done
}

// SeedingExperiment returns the results of a run as an experiment, the published table first.
func SeedingExperiment(s *Samples) (benchreport.Experiment, error) {
	pub, err := benchreport.Published("seeding.csv")
	if err != nil {
		return benchreport.Experiment{}, err
	}
	e := benchreport.Experiment{
		Name: "seeding", Title: "Seeding", Question: "How fast is a copy, beside pg_basebackup?", Scaled: s.Scaled,
		Conditions: []string{
			fmt.Sprintf("a pgbench database of %d MB, PostgreSQL %s", s.SizeMB, s.Server), "both sides, the link and the peers share this machine",
		},
		Published: []benchreport.Source{pub.Source},
		Notes: []string{
			"The published copy is of 32 GB, of another system on other machines: only its ratio can stand beside ours.",
			"Processor time of the source is the database server's and, for our own transfer, that of the process that serves it.",
			"The curves are of the first copy of each kind over the slow link, where that was measured.",
		},
	}
	published := benchreport.Table{Title: "Published", Columns: []benchreport.Column{
		{Name: "mode", Published: true}, {Name: "time", Unit: "s", Published: true}, {Name: "gain", Unit: "x", Published: true}, {Name: "processor", Unit: "%", Published: true},
	}}
	plain, _ := pub.Value("uncompressed", "seconds").(float64)
	for _, mode := range []string{"uncompressed", "compressed"} {
		took, _ := pub.Value(mode, "seconds").(float64)
		published.Rows = append(published.Rows, []any{mode, took, plain / max(took, 1), pub.Value(mode, "average_cpu_pct")})
	}
	ours := benchreport.Table{Title: "Measured", Columns: []benchreport.Column{
		{Name: "link"},
		{Name: "arm"},
		{Name: "time", Unit: "s"},
		{Name: "wire", Unit: "MB"},
		{Name: "files", Unit: "MB/s"},
		{Name: "processor of the source", Unit: "s"},
		{Name: "of the target", Unit: "s"},
		{Name: "codec"},
	}}
	took := map[string]float64{}
	for _, c := range s.Copies {
		row := []any{c.Link, c.Arm, nil, nil, nil, nil, nil, c.Err}
		if c.Err == "" {
			row = []any{c.Link, c.Arm, c.Seconds, float64(c.Wire) / 1e6, float64(c.Bytes) / 1e6 / c.Seconds, c.SourceCPU, c.TargetCPU, c.Codec}
			took[c.Link+c.Arm] = c.Seconds
		}
		ours.Rows = append(ours.Rows, row)
	}
	e.Tables = append(e.Tables, published, ours)
	if quick, ok := pub.Value("compressed", "seconds").(float64); ok && quick > 0 {
		e.Beside = fmt.Sprintf("%.1f times as fast, 32 GB, SQL Server.", plain/quick)
	}
	if auto, off := took["wan-good"+armOurs], took["wan-good"+armPlain]; auto > 0 && off > 0 {
		e.Answer = fmt.Sprintf("Over a slow link compression makes a copy %.1f times as fast.", off/auto)
	}
	e.Series = s.overTime()
	return e, nil
}

// SeedingReport returns the report of a run.
func SeedingReport(s *Samples) (*benchreport.Report, error) {
	e, err := SeedingExperiment(s)
	if err != nil {
		return nil, err
	}
	return &benchreport.Report{
		Title: "Seeding", Scaled: s.Scaled, Command: benchreport.CommandLine(os.Args), Version: buildinfo.Describe(), Started: s.Date, Ended: time.Now(),
		Machine: benchreport.Describe(os.TempDir()), Experiments: []benchreport.Experiment{e},
	}, nil
}

// overTime returns the curves of two copies over one link, the uncompressed one first, as in the published picture.
func (s *Samples) overTime() (out []benchreport.Series) {
	for _, link := range []string{"wan-good", "metro"} {
		for _, arm := range []struct{ arm, name string }{{armPlain, "OFF"}, {armOurs, "AUTO"}} {
			i := slices.IndexFunc(s.Copies, func(c copySample) bool { return c.Link == link && c.Arm == arm.arm && c.track != nil })
			if i < 0 {
				continue
			}
			for _, c := range s.Copies[i].track.curves {
				if len(c.points) > 0 {
					out = append(out, benchreport.Series{Name: arm.name + c.side, Unit: c.says, Points: c.points})
				}
			}
		}
		if len(out) > 0 {
			return out
		}
	}
	return nil
}
