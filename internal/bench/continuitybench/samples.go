package continuitybench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/bench/listenerbench"
	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/ledger"
	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/session"
)

// Samples are the raw measurements of a run.
type Samples struct {
	Version  string              `json:"version"`
	Date     time.Time           `json:"date"`
	Server   string              `json:"server"`
	Machine  report.Machine      `json:"machine"`
	Settings map[string]string   `json:"settings"`
	Runs     []Run               `json:"runs"`
	Cost     *listenerbench.Cost `json:"cost,omitempty"`
	Missing  map[string]string   `json:"missing,omitempty"` // parts and peers that were not measured, and why
	Figures  []goals.Figure      `json:"figures"`
}

// Run is one fault under load.
type Run struct {
	Arm      Arm     `json:"arm"`
	Run      int     `json:"run"`
	From     string  `json:"from"`
	To       string  `json:"to"`
	TookS    float64 `json:"took_s"`    // the planned failover; or from the kill to the last client's next answer
	SettledS float64 `json:"settled_s"` // until the states of the sessions were known
	Before   outlook `json:"before"`    // what the group said of the sessions right before

	HoldMS          []float64         `json:"hold_ms"` // of each client that stayed at a living listener: its longest request
	Kept            map[string]keptOf `json:"kept"`    // by way
	Errors          map[string]int    `json:"errors"`  // requests that failed, by SQLSTATE, of clients at living listeners
	LostConnections int               `json:"lost_connections"`
	LostBy          map[string]int    `json:"lost_by"`
	Losses          []string          `json:"losses"`     // the first of them
	Broken          []string          `json:"broken"`     // sessions whose state is not what it was
	Open            int               `json:"open"`       // transactions that were open at the death, of clients at living listeners
	Succeeded       int               `json:"succeeded"`  // of these, committed without an error
	OpenBy          map[string]int    `json:"open_by"`    // the others, by what ended them
	Doubtful        map[string]int    `json:"doubtful"`   // COMMITs under way at the death, by their answer
	Unresolved      int               `json:"unresolved"` // of these, those whose answer, or its absence, left their outcome open
	Verdict         ledger.Verdict    `json:"verdict"`
	Sums            [4]int64          `json:"sums"` // of history, branches, tellers, accounts
	Rows            [2]int64          `json:"rows"` // of history and of the ledger: a transaction inserts one of each
	Wrong           int64             `json:"wrong"`
	Judged          bool              `json:"judged"` // Verdict, Sums, Rows and Wrong are of every answer to its clients
}

// keptOf counts sessions of a way, and those of them that kept their connection.
type keptOf struct {
	Sessions int `json:"sessions"`
	Kept     int `json:"kept"`
}

// maxLosses bounds Run.Losses.
const maxLosses = 20

// see takes from the load what happened in the window of a fault.
func (r *Run) see(l *load, w window) {
	r.Kept, r.Errors, r.LostBy = map[string]keptOf{}, map[string]int{}, map[string]int{}
	r.OpenBy, r.Doubtful = map[string]int{}, map[string]int{}
	silent := silence(l, w)
	for _, v := range l.visitors() {
		if r.Arm == ArmNode && v.place.own {
			continue // its listener died
		}
		lost, way := v.lossesIn(w), r.wayOf(v.place)
		k := r.Kept[way]
		k.Sessions++
		if len(lost) == 0 {
			k.Kept++
		}
		r.Kept[way] = k
		r.LostConnections += len(lost)
		for _, state := range lost {
			r.LostBy[state]++
			if len(r.Losses) < maxLosses {
				r.Losses = append(r.Losses, fmt.Sprintf("%s, connected to %s first: %s", way, v.place.node, state))
			}
		}
		for _, state := range v.failuresIn(w) {
			r.Errors[state]++
		}
		r.HoldMS = append(r.HoldMS, float64(v.hold(w).Microseconds())/1000)
	}
	if r.Arm == ArmPlanned {
		return
	}
	for _, c := range l.tpcb {
		if r.Arm == ArmNode && c.place.own {
			continue
		}
		if x, ok := c.openAt(silent.from); ok {
			r.transaction(x, silent)
		}
	}
}

// wayOf names the kind of a client's place in this run. A planned failover makes the listener of the others the own
// one. Its clients stay for the next.
func (r *Run) wayOf(p place) string {
	if r.Arm == ArmPlanned {
		p.own = p.node == r.From
	}
	return p.way()
}

// transaction counts a transaction that was open at the death.
func (r *Run) transaction(x transaction, silent window) {
	r.Open++
	if x.outcome == session.OK {
		r.Succeeded++
	} else {
		r.OpenBy[x.state]++
	}
	if x.committing > 0 && x.committing < silent.to { // it was sent at once after the last answer
		answer := "COMMIT"
		if x.outcome != session.OK {
			answer = x.state
		}
		r.Doubtful[answer]++
		if x.outcome == session.Unknown {
			r.Unresolved++
		}
	}
}

// silence returns the longest time in the window in which no request of any client was answered. The server died at its
// beginning.
func silence(l *load, w window) window {
	var all []time.Duration
	for _, v := range l.visitors() {
		all = append(all, v.answersIn(w)...)
	}
	slices.Sort(all)
	longest, last := window{w.from, w.from}, w.from
	for _, t := range append(all, w.to) {
		if t-last > longest.to-longest.from {
			longest = window{last, t}
		}
		last = t
	}
	return longest
}

func (r *Run) failed() (n int) {
	for _, k := range r.Errors {
		n += k
	}
	return n
}

// holds returns the percentiles of the longest requests in words.
func (r *Run) holds() string {
	if len(r.HoldMS) == 0 {
		return "nobody"
	}
	return fmt.Sprintf("p50 %.0f ms, p99 %.0f ms", method.Nearest(r.HoldMS, 50), method.Nearest(r.HoldMS, 99))
}

func (r *Run) kept() (kept, of int) {
	for _, k := range r.Kept {
		kept, of = kept+k.Kept, of+k.Sessions
	}
	return kept, of
}

// readSums reads Sums and Rows.
func (r *Run) readSums(ctx context.Context, dsn string) error {
	conn, err := session.Open(ctx, dsn, appName)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return conn.QueryRow(ctx, sums).Scan(&r.Sums[0], &r.Sums[1], &r.Sums[2], &r.Sums[3], &r.Rows[0], &r.Rows[1])
}

// refuted returns how many answers the rows refute. The sums and the numbers of rows count as one each: statements that
// were executed twice before the ledger's row leave the sums equal, and more rows of history than of the ledger.
func (r *Run) refuted() int64 {
	n := r.Verdict.Lost + r.Verdict.FailedPresent + r.Verdict.Duplicates + r.Verdict.Unrecorded
	if s := r.Sums; s[0] != s[1] || s[0] != s[2] || s[0] != s[3] {
		n++
	}
	if r.Rows[0] != r.Rows[1] {
		n++
	}
	return n
}
