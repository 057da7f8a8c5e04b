package decisions

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/durable"
)

// Decision is one rule that fired, with the view that it saw.
type Decision struct {
	Node    ag.ReplicaID `json:"node"`
	Seq     uint64       `json:"seq"` // of this node's decisions; it grows across restarts of the agent
	At      time.Time    `json:"at"`  // by this node's clock, which is compared with no other clock
	Rule    ag.Rule      `json:"rule"`
	Because string       `json:"because"`
	Epoch   ag.Epoch     `json:"epoch"`
	Open    bool         `json:"open,omitempty"`     // writes were allowed
	GivenUp bool         `json:"given_up,omitempty"` // it did not come to its end, and Because says why
	View    ag.View      `json:"view"`
}

// Meaning describes in a sentence what the node did. Of a planned failover it says the beginning: the decision is
// recorded before it is known how that ends.
func (d Decision) Meaning() string {
	switch {
	case d.GivenUp:
		return "gave up a planned failover"
	case d.Rule == ag.RuleHandOver:
		return "began a planned failover"
	}
	return d.Rule.Meaning()
}

// Revision returns the last revision of the record that the decision saw. It is the only order between decisions of
// several nodes.
func (d Decision) Revision() int64 {
	r := d.View.Record.Revs
	return max(r.Epoch, r.State, r.Lead)
}

// The bounds of the record of decisions: how many are in memory, and how long a file may be. There are two files, the
// present and the previous one.
const (
	decisionsKept = 512
	decisionFile  = 1 << 20
	longDecision  = 256 << 10
)

// Log is the bounded record of decisions. Note, GiveUp, Kept, Transitions and Failovers may be called from any
// goroutine; only one goroutine calls Write.
type Log struct {
	mu    sync.Mutex // guards the fields below
	kept  []Decision
	count map[ag.Rule]uint64
	rule  ag.Rule // the last that fired
	moves failovers
	leads tenure
	last  string
	calm  string // the last everyday decision that was written
	seq   uint64

	path string // of the present file; "": decisions are not written
	size int64  // of that file; only Write uses it
}

// NewLog returns an empty log.
func NewLog() *Log { return &Log{count: map[ag.Rule]uint64{}} }

// Open reads the record that the previous agent left in dir, and continues it.
func (d *Log) Open(dir string) error {
	kept, err := Read(dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.path = filepath.Join(dir, "decisions.jsonl")
	d.leads.open(dir)
	d.kept = kept[max(0, len(kept)-decisionsKept):]
	if n := len(d.kept); n > 0 {
		d.seq = d.kept[n-1].Seq
	}
	if st, serr := os.Stat(d.path); serr == nil {
		d.size = st.Size()
	}
	return err
}

// Read reads the record of decisions in a node's state directory, oldest first. It skips lines that are not decisions,
// such as one that a crash cut short.
func Read(dir string) ([]Decision, error) {
	var out []Decision
	var errs []error
	for _, name := range []string{"decisions.1.jsonl", "decisions.jsonl"} {
		f, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		lines := bufio.NewScanner(io.LimitReader(f, 2*decisionFile))
		lines.Buffer(make([]byte, 0, 16<<10), longDecision)
		for lines.Scan() {
			var d Decision
			if json.Unmarshal(lines.Bytes(), &d) == nil && d.Rule != "" {
				out = append(out, d)
			}
		}
		errs = append(errs, lines.Err(), f.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return out, fmt.Errorf("read the record of decisions: %w", err)
	}
	return out, nil
}

// Note records a decision. isNew reports whether it differs from the last one. keep reports whether it is worth a place
// on the disk: a primary alternates between serving and bookkeeping many times a minute.
func (d *Log) Note(v ag.View, p ag.Plan) (made Decision, isNew, keep bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.Rule != d.rule {
		d.rule = p.Rule
		d.count[p.Rule]++
	}
	d.moves.note(v, p.Open, boottime.Now())
	d.leads.note(v, p.Open)
	key := fmt.Sprint(p.Rule, v.Record.Epoch.Epoch, v.Record.Epoch.Phase, v.Local.Server, v.Quorum, p.Open)
	if p.Rule != ag.RuleSeal && p.Rule != ag.RuleBusy && p.Rule != ag.RuleSync && p.Rule != ag.RuleQuarantined {
		key += p.Because
	}
	if key == d.last {
		return Decision{}, false, false
	}
	d.last = key
	made = d.keep(Decision{Rule: p.Rule, Because: p.Because, Open: p.Open}, v)
	switch p.Rule {
	case ag.RuleBusy, ag.RuleSync:
	case ag.RuleServe, ag.RuleStandBy, ag.RuleWitness:
		calm := fmt.Sprint(p.Rule, v.Record.Epoch.Epoch, v.Record.Epoch.Phase, p.Open)
		keep, d.calm = calm != d.calm, calm
	default:
		keep, d.calm = true, ""
	}
	return made, true, keep
}

// GiveUp records that a planned failover which was begun with the view was given up.
func (d *Log) GiveUp(v ag.View, to ag.ReplicaID, why error) Decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.keep(Decision{Rule: ag.RuleHandOver, Because: fmt.Sprintf("planned failover to %s: %v", to, why), GivenUp: true}, v)
}

// keep adds a decision that was made with the view. The caller holds mu.
func (d *Log) keep(x Decision, v ag.View) Decision {
	d.seq++
	x.Node, x.Seq, x.At, x.Epoch, x.View = v.Self, d.seq, time.Now(), v.Record.Epoch.Epoch, v.Slim()
	d.kept = append(d.kept, x)
	if len(d.kept) > decisionsKept {
		d.kept = slices.Delete(d.kept, 0, len(d.kept)-decisionsKept)
	}
	return x
}

// Write appends a decision to the file, durably.
func (d *Log) Write(x Decision) error {
	if d.path == "" {
		return nil
	}
	if err := d.writeTenure(); err != nil {
		return fmt.Errorf("record since when this node leads: %w", err)
	}
	line, err := json.Marshal(x)
	if err != nil {
		return fmt.Errorf("record a decision: %w", err)
	}
	line = append(bytes.ReplaceAll(line, []byte("\n"), []byte(" ")), '\n')
	if len(line) > longDecision {
		return fmt.Errorf("record a decision: its view has %d bytes", len(line))
	}
	if d.size+int64(len(line)) > decisionFile {
		if err := durable.Rename(d.path, filepath.Join(filepath.Dir(d.path), "decisions.1.jsonl")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("record a decision: %w", err)
		}
		d.size = 0
	}
	f, err := os.OpenFile(d.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("record a decision: %w", err)
	}
	first := d.size == 0 // the file may be new, and then its name has to be flushed as well
	n, err := f.Write(line)
	d.size += int64(n)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil && first {
		err = durable.SyncDir(filepath.Dir(d.path))
	}
	if err != nil {
		return fmt.Errorf("record a decision: %w", err)
	}
	return nil
}

// Kept returns the last decisions, oldest first.
func (d *Log) Kept() []Decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.kept)
}

// Transitions returns how often each rule fired, since the agent started, where another one had fired before.
func (d *Log) Transitions() map[ag.Rule]uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := make(map[ag.Rule]uint64, len(ag.Rules))
	for _, r := range ag.Rules {
		m[r] = d.count[r]
	}
	return m
}
