package restartcmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
)

// planned is one restart of coterie restart --postgres --dry-run.
type planned struct {
	Replica  ag.ReplicaID `json:"replica"`
	How      string       `json:"how"`                // secondary, after_failover, in_place
	Settings []string     `json:"settings,omitempty"` // those that wait for it
}

// The ways in which a server is restarted.
const (
	asSecondary   = "secondary"
	afterFailover = "after_failover"
	inPlace       = "in_place"
)

// says returns what the restart does to clients.
func (p planned) says() string {
	switch p.How {
	case afterFailover:
		return "the primary: it gives the leadership away by a planned failover and restarts as a secondary"
	case inPlace:
		return "the primary, in place: new transactions wait, and its sessions are closed"
	}
	return "a secondary: its readers are closed and may connect again"
}

// foretell prints the restarts that would be done now, in order, if no replica failed and the leadership stayed until
// the command moves it.
func (r rolling) foretell(s api.Status) error {
	waits, err := r.waits()
	if err != nil && (r.o.pending || r.o.all) {
		return err
	}
	plan := []planned{}
	for {
		st, _, err := r.choose(s, waits)
		if err != nil {
			return err
		}
		if st == nil {
			break
		}
		p := planned{Replica: st.id, How: asSecondary, Settings: slices.Concat(waits[st.id].raise, waits[st.id].lower)}
		switch {
		case st.inPlace:
			p.How = inPlace
		case st.id == s.Primary:
			p.How = afterFailover
		}
		plan = append(plan, p)
		r.times[st.id]++
		waits = after(waits, s, *st)
	}
	if r.o.json {
		return cli.PrintJSON(r.c, plan)
	}
	if len(plan) == 0 {
		cli.Say(r.c, "no server waits for a restart; nothing to do")
		return nil
	}
	for i, p := range plan {
		waits := ""
		if len(p.Settings) > 0 {
			waits = "; for " + strings.Join(p.Settings, ", ")
		}
		if _, err := fmt.Fprintf(cli.Out(r.c), "%d of %d: %s, %s%s\n", i+1, len(plan), p.Replica, p.says(), waits); err != nil {
			return err
		}
	}
	cli.Say(r.c, "nothing was changed")
	return nil
}

// after returns what waits on each server once that restart is done.
func after(waits map[ag.ReplicaID]waiting, s api.Status, st step) map[ag.ReplicaID]waiting {
	out := map[ag.ReplicaID]waiting{}
	for id, w := range waits {
		switch {
		case id == st.id && (id == s.Primary || len(w.held) == 0 || st.settle):
			continue
		case id == st.id:
			w.raise = nil
		case st.id == s.Primary:
			w.held = nil // the primary has as little
		}
		out[id] = w
	}
	return out
}
