package maintenancecmd

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestMaintenance holds which statement each command runs, and what it prints.
func TestMaintenance(t *testing.T) {
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Group: "orders", Maintenance: &ag.Maintenance{Reason: "disk"}, Replicas: []api.Replica{{Name: "n1"}, {Name: "n2", Maintenance: &ag.Maintenance{}}}})
	a.OnStatement("MAINTENANCE", "ALTER AVAILABILITY GROUP")
	for _, tt := range []struct {
		args []string
		runs []string
	}{
		{nil, nil},
		{[]string{"on"}, []string{"SET (MAINTENANCE = ON)"}},
		{[]string{"on", "--reason", "it's the disk"}, []string{"SET (MAINTENANCE = N'it''s the disk')"}},
		{[]string{"on", "n2", "--for", "2h", "--reason", "disk"}, []string{"MODIFY REPLICA ON N'n2' WITH (MAINTENANCE = N'until 20"}},
		{[]string{"off"}, []string{"SET (MAINTENANCE = OFF)"}},
		{[]string{"off", "n2"}, []string{"MODIFY REPLICA ON N'n2' WITH (MAINTENANCE = OFF)"}},
		{[]string{"off", "--all"}, []string{"MODIFY REPLICA ON N'n2' WITH (MAINTENANCE = OFF)", "SET (MAINTENANCE = OFF)"}},
	} {
		before := len(a.Asked("SQL"))
		r := clitest.Run(t, Maintenance(), a.Layout.Dir, tt.args...)
		if r.Err != nil || !strings.Contains(r.Out, "orders: automatic failover is off for maintenance with no end set: disk\nn2: out of routing") {
			t.Errorf("%v: %v\n%s", tt.args, r.Err, r.Out)
		}
		ran := a.Asked("SQL")[before:]
		if len(ran) != len(tt.runs) {
			t.Fatalf("%v ran %v", tt.args, ran)
		}
		for i, text := range ran {
			if _, err := ddl.Parse(text.(string)); err != nil || !strings.Contains(text.(string), tt.runs[i]) {
				t.Errorf("%v ran %s, %v", tt.args, text, err)
			}
		}
	}
	if r := clitest.Run(t, Maintenance(), a.Layout.Dir, "--json"); r.Err != nil || !strings.Contains(r.Out, `"n2"`) || !strings.Contains(r.Out, `"reason": "disk"`) {
		t.Errorf("%v\n%s", r.Err, r.Out)
	}
}

// TestOffWhereNoneIs holds that the end of a maintenance that is not is told as such, with what ends the one that is.
func TestOffWhereNoneIs(t *testing.T) {
	group, replica := &ag.Maintenance{Reason: "disk"}, &ag.Maintenance{}
	for name, tt := range map[string]struct {
		s    api.Status
		args []string
		said string
	}{
		"no replica":       {api.Status{Replicas: []api.Replica{{Name: "n2"}}}, []string{"n2"}, "n2 was not under maintenance: nothing was changed\n"},
		"the group":        {api.Status{Maintenance: group, Replicas: []api.Replica{{Name: "n2"}}}, []string{"n2"}, "n2 was not under maintenance: nothing was changed; what is above ends with: coterie maintenance off\n"},
		"no group":         {api.Status{Replicas: []api.Replica{{Name: "n2"}}}, nil, "the group orders was not under maintenance: nothing was changed\n"},
		"a replica":        {api.Status{Replicas: []api.Replica{{Name: "n2", Maintenance: replica}}}, nil, "the group orders was not under maintenance: nothing was changed; what is above ends with: coterie maintenance off n2\n"},
		"that one":         {api.Status{Replicas: []api.Replica{{Name: "n2", Maintenance: replica}}}, []string{"n2"}, ""},
		"that group":       {api.Status{Maintenance: group}, nil, ""},
		"a foreign member": {api.Status{}, []string{"n9"}, ""},
	} {
		a := clitest.NewAgent(t)
		tt.s.Group = "orders"
		a.SetStatus(tt.s)
		a.OnStatement("MAINTENANCE", "ALTER AVAILABILITY GROUP")
		r := clitest.Run(t, Maintenance(), a.Layout.Dir, append([]string{"off"}, tt.args...)...)
		if r.Err != nil || r.Said != tt.said {
			t.Errorf("%s: %v, %q", name, r.Err, r.Said)
		}
	}
}

// TestRefusals holds that mistakes run nothing, and that a refusal of the node keeps its exit code.
func TestRefusals(t *testing.T) {
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Group: "orders"})
	a.RefuseSQL("n1", console.Error{State: "55000", Message: "n1 is the primary"})
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"on", "--for", "5s"}, 2, "choose between"},
		{[]string{"on", "--for", "0"}, 2, "leave --for away"},
		{[]string{"on", "--for", "soon"}, 2, "not a duration"},
		{[]string{"on", "--reason", "until noon"}, 2, "--for"},
		{[]string{"on", "n1", "n2"}, 2, "[NAME]"},
		{[]string{"off", "n2", "--all"}, 2, "choose one"},
		{[]string{"on", "n1"}, 4, "n1 is the primary"},
	} {
		clitest.Run(t, Maintenance(), a.Layout.Dir, tt.args...).Refused(t, tt.code, tt.says)
	}
	if ran := a.Asked("SQL"); len(ran) != 1 {
		t.Errorf("%v", ran)
	}
}

func TestValueHasTheTime(t *testing.T) {
	now := time.Date(2026, 11, 25, 6, 0, 0, 0, time.FixedZone("", 3600))
	if v, err := value(now, 90*time.Minute, "disk"); err != nil || v != "N'until 2026-11-25T06:30:00Z: disk'" {
		t.Error(v, err)
	}
}

// TestMaintenanceOnARemovedNode holds that a node which was removed says that, and not what it saw last.
func TestMaintenanceOnARemovedNode(t *testing.T) {
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Node: "n3", Group: "orders", Availability: availability.Report{Removed: true}})
	for _, args := range [][]string{nil, {"on"}, {"off"}, {"off", "--all"}} {
		r := clitest.Run(t, Maintenance(), a.Layout.Dir, args...)
		if fail.KindOf(r.Err) != fail.Unhealthy || !strings.Contains(r.Err.Error(), "n3 was removed from the group") || r.Out != "" || len(a.Asked("SQL")) > 0 {
			t.Errorf("%v: %v\n%s", args, r.Err, r.Out)
		}
	}
}
