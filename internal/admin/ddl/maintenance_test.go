package ddl

import (
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestMaintenance holds what each value of the option makes of the configuration, that the configuration is shown as it
// can be typed again, and what is refused.
func TestMaintenance(t *testing.T) {
	until := time.Date(2026, 11, 25, 18, 0, 0, 0, time.UTC)
	g := ag.Group{Name: "g", Replicas: []ag.Replica{
		{ID: "n1", AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic},
		{ID: "n2", AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic},
		{ID: "w", AvailabilityMode: ag.ConfigurationOnly, FailoverMode: ag.Manual},
	}}
	change := func(clause string) (ag.Group, error) {
		s, err := Parse("ALTER AVAILABILITY GROUP [g] " + clause)
		if err != nil {
			t.Fatalf("%s: %v", clause, err)
		}
		next, _, err := s.Change(g, Context{Self: "n1", Primary: "n1"})
		return next, err
	}
	for value, want := range map[string]*ag.Maintenance{
		"ON": {}, "OFF": nil, "N'new switches'": {Reason: "new switches"}, "N'until 2026-11-25T19:00:00+01:00: it''s the disk'": {Until: until, Reason: "it's the disk"},
		"N'until 2026-11-25T18:00:00Z'": {Until: until},
	} {
		of := func(m *ag.Maintenance) string {
			if m == nil {
				return "none"
			}
			return m.String()
		}
		for range 2 {
			next, err := change("SET (MAINTENANCE = " + value + ")")
			if err != nil || of(next.Maintenance) != of(want) {
				t.Errorf("group, %s: %s, %v", value, of(next.Maintenance), err)
			}
			next, err = change("MODIFY REPLICA ON N'n2' WITH (MAINTENANCE = " + value + ")")
			if err != nil || of(next.Replicas[1].Options.Maintenance) != of(want) {
				t.Errorf("replica, %s: %s, %v", value, of(next.Replicas[1].Options.Maintenance), err)
			}
			if v, set := getMaintenance(want); set {
				if value = v.Text; v.Form == Text {
					value = Literal(v.Text)
				}
			}
		}
	}
	for clause, says := range map[string]string{
		"SET (MAINTENANCE = N'until tomorrow')":                 "expected ON, OFF",
		"MODIFY REPLICA ON N'n1' WITH (MAINTENANCE = ON)":       "n1 is the primary",
		"MODIFY REPLICA ON N'w' WITH (MAINTENANCE = N'reason')": "witness",
	} {
		if _, err := change(clause); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", clause, err)
		}
	}
	if _, err := change("MODIFY REPLICA ON N'n1' WITH (MAINTENANCE = OFF)"); err != nil {
		t.Error(err)
	}
}
