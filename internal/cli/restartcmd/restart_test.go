package restartcmd

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/cli/clitest"
)

// TestRestartForPrograms holds that the restart of an agent prints JSON if it is asked for, and one line if not.
func TestRestartForPrograms(t *testing.T) {
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Node: "n1", Epoch: 7, Uptime: 1, Replicas: []api.Replica{{Name: "n1"}}})
	a.On("Restart", func(any) (any, error) { return nil, nil })
	var v replaced
	r := clitest.Run(t, Restart(), a.Layout.Dir, "--json")
	if err := json.Unmarshal([]byte(r.Out), &v); err != nil || r.Err != nil || v.Node != "n1" || v.Epoch != 7 || v.TookNS <= 0 {
		t.Errorf("%v %v %s", r.Err, err, r.Out)
	}
	if r = clitest.Run(t, Restart(), a.Layout.Dir); r.Err != nil || r.Out != "" {
		t.Errorf("%v %s", r.Err, r.Out)
	}
}

// TestRestartOfARemovedNode holds that the restart of an agent whose group has it no more is found to be done, and that
// the command says what is left to do with the node.
func TestRestartOfARemovedNode(t *testing.T) {
	a := clitest.NewAgent(t)
	was := api.Status{Node: "n1", Epoch: 7, Uptime: time.Hour, Replicas: []api.Replica{{Name: "n2"}}, Availability: availability.Report{Removed: true}}
	is := was
	is.Uptime = 1
	a.SetStatus(was, was, is)
	a.On("Restart", func(any) (any, error) { return nil, nil })
	r := clitest.Run(t, Restart(), a.Layout.Dir)
	if r.Err != nil || !strings.Contains(r.Said, "the agent of n1 was restarted in ") || !strings.Contains(r.Said, "n1 was removed from the group") || !strings.Contains(r.Said, "coterie leave") {
		t.Errorf("%v %s", r.Err, r.Said)
	}
}
