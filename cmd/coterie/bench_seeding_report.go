package main

import (
	"fmt"
	"os"
	"time"

	benchreport "github.com/coteriedb/coterie/internal/bench/report"
)

// trackEvery is how often processor and network are looked at while a copy is made.
const trackEvery = 200 * time.Millisecond

// track samples what a copy costs over time.
type track struct {
	began     time.Time
	quit      chan struct{}
	done      chan struct{}
	processor [][2]float64 // seconds and percent of a core
	network   [][2]float64 // seconds and MB/s
}

// startTrack begins to sample; cpu returns processor seconds and wire bytes so far, either nil where they cannot be told.
func startTrack(cpu func() float64, wire func() int64) *track {
	t := &track{began: time.Now(), quit: make(chan struct{}), done: make(chan struct{})}
	go t.run(cpu, wire)
	return t
}

func (t *track) run(cpu func() float64, wire func() int64) {
	defer close(t.done)
	tick := time.NewTicker(trackEvery)
	defer tick.Stop()
	var wasCPU float64
	if cpu != nil {
		wasCPU = cpu()
	}
	wasWire, was := wire(), t.began
	for {
		select {
		case <-t.quit:
			return
		case now := <-tick.C:
			at, span := now.Sub(t.began).Seconds(), now.Sub(was).Seconds()
			if cpu != nil {
				c := cpu()
				t.processor = append(t.processor, [2]float64{at, 100 * (c - wasCPU) / span})
				wasCPU = c
			}
			w := wire()
			t.network = append(t.network, [2]float64{at, float64(w-wasWire) / 1e6 / span})
			wasWire, was = w, now
		}
	}
}

func (t *track) stop() {
	close(t.quit)
	<-t.done
}

// seedingReport makes the page of a run, the published table first.
func seedingReport(s *seedingSamples) (*benchreport.Report, error) {
	pub, err := benchreport.Published("seeding.csv")
	if err != nil {
		return nil, err
	}
	e := benchreport.Experiment{
		Name: "seeding", Title: "Seeding", Question: "How fast is a copy, beside pg_basebackup?", Scaled: s.Scaled,
		Conditions: []string{
			fmt.Sprintf("a pgbench database of %d MB, PostgreSQL %s", s.SizeMB, s.Server), "both sides, the link and the peers share this machine",
		},
		Published: []benchreport.Source{pub.Source},
		Notes: []string{
			"The published copy is of 32 GB, of another system on other machines: only its ratio can stand beside ours.",
			"Processor time is of both sides of our own transfer, which share a process in this bench, without the database server's.",
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
		{Name: "link"}, {Name: "arm"}, {Name: "time", Unit: "s"}, {Name: "wire", Unit: "MB"}, {Name: "files", Unit: "MB/s"}, {Name: "processor", Unit: "s"}, {Name: "codec"},
	}}
	took := map[string]float64{}
	for _, c := range s.Copies {
		row := []any{c.Link, c.Arm, nil, nil, nil, nil, c.Err}
		if c.Err == "" {
			row = []any{c.Link, c.Arm, c.Seconds, float64(c.Wire) / 1e6, float64(c.Bytes) / 1e6 / c.Seconds, nil, c.Codec}
			took[c.Link+c.Arm] = c.Seconds
		}
		if c.SrcCPU > 0 {
			row[5] = c.SrcCPU
		}
		ours.Rows = append(ours.Rows, row)
	}
	e.Tables = append(e.Tables, published, ours)
	if auto, off := took["wan-good"+armOurs], took["wan-good"+armPlain]; auto > 0 && off > 0 {
		e.Answer = fmt.Sprintf("Over a slow link compression makes a copy %.1f times as fast (published: %.1f).", off/auto, 300.0/90)
	}
	e.Series = s.series
	return &benchreport.Report{
		Title: "Seeding", Scaled: s.Scaled, Command: benchreport.CommandLine(os.Args), Version: version, Started: s.Date, Ended: time.Now(),
		Machine: benchreport.Describe(os.TempDir()), Experiments: []benchreport.Experiment{e},
	}, nil
}

// chart keeps what the first copy of an arm over a link cost over time.
func (b *seedBench) chart(link, arm string, t *track) {
	for _, s := range b.samples.series {
		if s.Name == link+", "+arm+": network" {
			return
		}
	}
	add := func(what string, points [][2]float64) {
		if len(points) > 0 {
			b.samples.series = append(b.samples.series, benchreport.Series{Name: link + ", " + arm + ": " + what, Unit: "% of a core; MB/s", Points: points})
		}
	}
	add("processor", t.processor)
	add("network", t.network)
}
