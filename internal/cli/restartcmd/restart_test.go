package restartcmd

import (
	"encoding/json"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/cli/clitest"
)

// TestRestartForPrograms holds that the restart of an agent prints JSON if it is asked for, and one line if not.
func TestRestartForPrograms(t *testing.T) {
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Node: "n1", Epoch: 7, Replicas: []api.Replica{{Name: "n1", Local: &api.Process{}}}})
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

// TestRestartOfARemovedNode holds that the command does not wait in vain, nor say that a restarted agent does not
// answer.
func TestRestartOfARemovedNode(t *testing.T) {
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Node: "n1", Replicas: []api.Replica{{Name: "n2"}}, Availability: availability.Report{Removed: true}})
	a.On("Restart", func(any) (any, error) { return nil, nil })
	clitest.Run(t, Restart(), a.Layout.Dir).Refused(t, 3, "the agent of n1 was told to restart; whether it has done so is not known, since n1 was removed from the group")
}
