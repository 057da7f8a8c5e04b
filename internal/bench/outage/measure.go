package outage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/ledger"
)

// Lengths of the parts of a measured run.
const (
	warmUp     = 2 * time.Second // of writing before a fault
	coolDown   = time.Second     // of writing after it
	idleFor    = 20 * time.Second
	settleIn   = 5 * time.Second // before idle is measured
	peerBudget = 3 * time.Minute // for a peer to elect another primary; its default settings take half a minute
)

// Options describes what Measure measures.
type Options struct {
	Up      func(ctx context.Context, progress func(string)) (observe.Lab, error) // three replicas
	Witness func(ctx context.Context, progress func(string)) (observe.Lab, error) // two replicas and a witness; nil: not measured
	Fast    func(ctx context.Context, progress func(string)) (observe.Lab, error) // three replicas at the profile fast; nil: not measured
	// Starts the other systems to measure, and returns a function that ends them; nil: none.
	Peers    func(ctx context.Context) ([]Peer, func() error, error)
	PeersWhy string                                              // why Peers is nil
	Relay    func(ctx context.Context, to string) (Relay, error) // starts a process that copies bytes, for ArmCost
	Screen   *observe.Screen
	Dir      string // directory of the ledgers
	Runs     int    // repetitions of every arm
	Only     []Arm  // arms to run; none: all
	Version  string
	Server   string
}

// Samples are the raw measurements, as saved in the JSON file.
type Samples struct {
	At         time.Time     `json:"at"`
	Version    string        `json:"version"`
	PostgreSQL string        `json:"postgresql"`
	CPUs       int           `json:"cpus"`
	Settings   string        `json:"settings"`
	UpSeconds  float64       `json:"lab_up_seconds"`
	Idle       []Idle        `json:"idle"`
	Witness    *Idle         `json:"witness"`
	Deaths     []Sample      `json:"node_death"`
	Planned    []Sample      `json:"planned"`
	Silent     []Sample      `json:"node_silent"`
	SilentFast []Sample      `json:"node_silent_fast"`
	Secondary  []Sample      `json:"secondary_death"` // To is the secondary; an outage is the longest gap
	Return     []Sample      `json:"secondary_return"`
	Peers      []PeerSamples `json:"peers,omitempty"`
	PeersWhy   string        `json:"peers_not_run,omitempty"`

	WitnessDeath []Sample `json:"witness_death"`
	LastDeath    []Sample `json:"last_secondary_death"` // of two replicas and a witness
	LastReturn   []Sample `json:"last_secondary_return"`

	Cost []CostRound `json:"cost"`
}

// Peer is another system with one set of settings, measured beside ours with the same writer and the same kind of
// death.
type Peer interface {
	Name() string                     // the last part of its goal's name, after "node-death-outage-to-"
	About() map[string]string         // versions and settings
	Settle(ctx context.Context) error // puts the settings in force, and waits until every replica is back
	ReadWrite() string                // connection string with which clients reach the primary
	DSN(node string) string           // connection string of the node's own server
	Primary(ctx context.Context) (string, error)
	Kill(node string) error
	Start(node string) error
}

// PeerSamples are the node deaths of one peer.
type PeerSamples struct {
	Name   string            `json:"name"`
	About  map[string]string `json:"about"`
	Deaths []Sample          `json:"node_death"`
}

// Sample is one failover under one writer.
type Sample struct {
	From     string           `json:"from"`
	To       string           `json:"to"`
	OutageMS float64          `json:"outage_ms"`
	Verdict  ledger.Verdict   `json:"ledger"`
	Errors   map[string]int64 `json:"errors"`
	Rejoin   *observe.Rejoin  `json:"rejoin,omitempty"`
}

// Idle is the memory and the processor time of an agent without clients.
type Idle struct {
	Node      string  `json:"node"`
	Seconds   float64 `json:"seconds"`
	CPU       float64 `json:"cpu_percent"`
	RssAnonMB float64 `json:"rss_anon_mb"`
}

// Measure repeats failovers under one writer that sends a row every 5 ms, and measures what an idle agent uses. With an
// error it returns the measurements before it.
func Measure(ctx context.Context, o Options) (s Samples, err error) {
	s = Samples{
		At: time.Now(), Version: o.Version, PostgreSQL: o.Server, CPUs: runtime.NumCPU(),
		Settings: "default profile, commit rule QUORUM, three replicas on one machine, one writer, a row every 5 ms",
	}
	m := &measurement{o, nil}
	if len(o.Only) == 0 || slices.ContainsFunc([]Arm{ArmDeath, ArmPlanned, ArmSilent, ArmSecondary}, m.wants) {
		if err := m.group(ctx, &s); err != nil {
			return s, err
		}
	}
	if o.Witness != nil {
		if err := m.witness(ctx, &s); err != nil {
			return s, fmt.Errorf("witness: %w", err)
		}
	}
	if o.Fast != nil && m.wants(ArmSilentFast) {
		if err := m.fast(ctx, &s); err != nil {
			return s, fmt.Errorf("profile fast: %w", err)
		}
	}
	return s, nil
}

type measurement struct {
	Options
	lab observe.Lab
}

func (m *measurement) down(l observe.Lab, err error) error {
	m.Screen.Busy("stopping the group")
	ctx, cancel := context.WithTimeout(context.Background(), observe.DownBudget)
	defer cancel()
	if derr := l.Down(ctx, false); derr != nil {
		err = errors.Join(err, fmt.Errorf("stop the group: %w", derr))
	}
	return err
}

// group runs all measurements that use the three replicas.
func (m *measurement) group(ctx context.Context, s *Samples) (err error) {
	start := time.Now()
	m.Screen.Busy("lab up")
	m.lab, err = m.Up(ctx, func(string) {})
	if err != nil {
		return fmt.Errorf("lab up: %w", err)
	}
	defer func() { err = m.down(m.lab, err) }()
	s.UpSeconds = time.Since(start).Seconds()
	m.Screen.Say("lab up with %d replicas: %.1f s", len(m.lab.Nodes()), s.UpSeconds)
	pids := map[string]int{}
	for _, n := range m.lab.Nodes() {
		if pids[n], err = observe.AgentPID(ctx, m.lab, n); err != nil {
			return err
		}
	}
	if s.Idle, err = m.idle(ctx, pids); err != nil {
		return err
	}
	peers, endPeers, err := m.startPeers(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, endPeers()) }()
	for i := range m.Runs {
		if err := m.round(ctx, i+1, s); err != nil {
			return err
		}
		for k, p := range peers {
			one, err := m.peerDeath(ctx, i+1, p)
			if err != nil {
				return fmt.Errorf("run %d, %s: %w", i+1, p.Name(), err)
			}
			s.Peers[k].Deaths = append(s.Peers[k].Deaths, one)
			m.Screen.Say("run %d/%d: %s: %s killed, outage %.0f ms, lost %d", i+1, m.Runs, p.Name(), one.From, one.OutageMS, one.Verdict.Lost)
		}
	}
	return nil
}

// writer runs one ledger's writer on our group around fault, and checks that no acknowledged row was lost.
func (m *measurement) writer(ctx context.Context, name string, fault func(context.Context, *ledger.Ledger) (Sample, error)) (Sample, error) {
	return m.writerOn(ctx, name, ledger.WriterOptions{DSN: m.lab.ReadWrite()}, m.lab.DSN, fault)
}

// writerOn is writer for any system and any patience. o says where and how it writes; server returns the connection
// string at which a node's rows are read.
func (m *measurement) writerOn(ctx context.Context, name string, o ledger.WriterOptions, server func(node string) string, fault func(context.Context, *ledger.Ledger) (Sample, error)) (s Sample, err error) {
	l, err := ledger.Open(filepath.Join(m.Dir, name))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := l.Prepare(ctx, o.DSN); err != nil {
		return s, err
	}
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wrote := make(chan error, 1)
	go func() {
		o.Every = 5 * time.Millisecond
		wrote <- l.Write(wctx, o)
	}()
	s, err = func() (Sample, error) {
		if err := retry.Sleep(ctx, warmUp); err != nil {
			return Sample{}, err
		}
		start := time.Now()
		s, err := fault(ctx, l)
		if err != nil {
			return s, err
		}
		if err := retry.Sleep(ctx, coolDown); err != nil {
			return s, err
		}
		o := l.OutageBetween(start, time.Now())
		s.OutageMS, s.Errors = float64(o.Longest.Microseconds())/1000, o.Errors
		return s, nil
	}()
	cancel()
	if err := errors.Join(err, <-wrote); err != nil {
		return s, err
	}
	s.Verdict, err = l.Verify(ctx, server(s.To))
	return s, err
}

// death kills the primary's node and starts it again.
func (m *measurement) death(ctx context.Context, run int) (Sample, error) {
	m.Screen.Busy("run %d of %d: node death", run, m.Runs)
	s, err := m.writer(ctx, fmt.Sprintf("ledger-%03d-death", run), func(ctx context.Context, l *ledger.Ledger) (Sample, error) {
		st, err := observe.Primary(ctx, m.lab)
		if err != nil {
			return Sample{}, err
		}
		s := Sample{From: string(st.Node)}
		if err := m.lab.Kill(ctx, s.From); err != nil {
			return s, fmt.Errorf("kill %s: %w", s.From, err)
		}
		s.To, err = m.writesGoOn(ctx, l, s.From)
		return s, err
	})
	if err != nil {
		return s, err
	}
	m.Screen.Busy("run %d of %d: %s comes back", run, m.Runs, s.From)
	w := observe.Watch(ctx, m.lab, observe.NewScreenless())
	defer w.Stop()
	start := time.Now()
	if err := m.lab.Start(ctx, s.From); err != nil {
		return s, fmt.Errorf("start %s: %w", s.From, err)
	}
	if err := m.all(ctx); err != nil {
		return s, err
	}
	r := observe.RejoinOf(m.lab.Dir(s.From), w.Rules(s.From), time.Since(start))
	s.Rejoin = &r
	return s, nil
}

func (m *measurement) all(ctx context.Context) error { return m.allOf(ctx, len(m.lab.Nodes())) }

func (m *measurement) allOf(ctx context.Context, replicas int) error {
	return observe.Await(ctx, observe.RejoinBudget, "all replicas to be SYNCHRONIZED", func(ctx context.Context) (bool, error) {
		return observe.Synchronized(ctx, m.lab, replicas, "")
	})
}

// writesGoOn waits for another primary, and for a row that it acknowledged.
func (m *measurement) writesGoOn(ctx context.Context, l *ledger.Ledger, old string) (leader string, err error) {
	var since time.Time
	err = observe.Await(ctx, observe.FailoverBudget, "another replica to take writes", func(ctx context.Context) (bool, error) {
		st, err := observe.Primary(ctx, m.lab)
		if err != nil || string(st.Node) == old {
			return false, err
		}
		leader, since = string(st.Node), time.Now()
		return true, nil
	})
	if err != nil {
		return "", err
	}
	return leader, observe.Await(ctx, observe.FailoverBudget, "an acknowledged write", func(context.Context) (bool, error) {
		return l.Progress().LastAck.After(since), nil
	})
}

// planned moves the leadership to a synchronized secondary.
func (m *measurement) planned(ctx context.Context, run int) (Sample, error) {
	m.Screen.Busy("run %d of %d: planned failover", run, m.Runs)
	s, err := m.writer(ctx, fmt.Sprintf("ledger-%03d-planned", run), func(ctx context.Context, l *ledger.Ledger) (Sample, error) {
		st, err := observe.Primary(ctx, m.lab)
		if err != nil {
			return Sample{}, err
		}
		to := observe.Target(st, "")
		c, cancel := context.WithTimeout(ctx, observe.FailoverBudget)
		defer cancel()
		res, err := m.lab.Agent(string(st.Node)).Failover(c, api.FailoverRequest{To: to})
		if err != nil {
			return Sample{}, fmt.Errorf("failover to %s: %w", to, err)
		}
		s := Sample{From: string(res.From), To: string(res.To)}
		_, err = m.writesGoOn(ctx, l, s.From)
		return s, err
	})
	if err != nil {
		return s, err
	}
	return s, m.all(ctx)
}

// Save writes the raw samples as JSON.
func (s Samples) Save(path string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o600)
}

// Figures returns the figures of the two benches, failover and footprint. why is the reason for missing ones.
func (s Samples) Figures(why string) (failover, footprint []goals.Figure) {
	lost := func(list []Sample) (n float64) {
		for _, one := range list {
			n += float64(one.Verdict.Lost)
		}
		return n
	}
	seconds := func(list []Sample) (out []float64) {
		for _, one := range list {
			out = append(out, one.OutageMS/1000)
		}
		return out
	}
	figure := func(name string, measured float64, n int) goals.Figure {
		if n == 0 {
			return goals.Figure{Name: name, NotRun: why}
		}
		return goals.Figure{Name: name, Measured: measured}
	}
	failover = []goals.Figure{
		figure("node-death-rows-lost", lost(s.Deaths), len(s.Deaths)),
		figure("node-death-runs", float64(len(s.Deaths)), len(s.Deaths)),
		median("node-death-outage-p50", seconds(s.Deaths), why),
		figure("planned-rows-lost", lost(s.Planned), len(s.Planned)),
		median("planned-outage-p50", seconds(s.Planned), why),
	}
	failover = append(failover, s.peerFigures(seconds(s.Deaths), why)...)
	failover = append(failover, s.armFigures(why)...)
	failover = append(failover, s.costFigures(why)...)
	var cpu, mem float64
	for _, i := range s.Idle {
		cpu, mem = max(cpu, i.CPU), max(mem, i.RssAnonMB)
	}
	up := 0
	if s.UpSeconds > 0 {
		up = 1
	}
	footprint = []goals.Figure{
		figure("lab-up-three-replicas", round(s.UpSeconds), up),
		figure("idle-agent-cpu", round(cpu), len(s.Idle)),
		figure("idle-agent-memory", round(mem), len(s.Idle)),
	}
	if s.Witness != nil {
		return failover, append(footprint, goals.Figure{Name: "witness-memory", Measured: round(s.Witness.RssAnonMB)})
	}
	return failover, append(footprint, goals.Figure{Name: "witness-memory", NotRun: why})
}

func round(v float64) float64 { return math.Round(v*100) / 100 }

// median returns the lower median with its 95 % interval by order statistics, or with the range for fewer than six
// samples.
func median(name string, v []float64, why string) goals.Figure {
	n := len(v)
	if n == 0 {
		return goals.Figure{Name: name, NotRun: why}
	}
	v = slices.Sorted(slices.Values(v))
	half := 0.98 * math.Sqrt(float64(n))
	low, high := int(math.Floor(float64(n)/2-half)), int(math.Ceil(float64(n)/2+half))
	if n < 6 {
		low, high = 0, n-1
	}
	return goals.Figure{Name: name, Measured: v[(n-1)/2], Low: v[max(low, 0)], High: v[min(high, n-1)], HasInterval: true}
}
