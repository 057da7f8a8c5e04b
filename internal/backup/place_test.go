package backup

import (
	"strings"
	"testing"
)

// TestPlace holds on which replica a backup is made, by each preference.
func TestPlace(t *testing.T) {
	n1, n2, n3 := Replica{Name: "n1", Priority: 50, Primary: true}, Replica{Name: "n2", Priority: 50}, Replica{Name: "n3", Priority: 50}
	with := func(r Replica, priority int, unfit string) Replica {
		r.Priority, r.Unfit = priority, unfit
		return r
	}
	const away = "it does not answer"
	for name, tt := range map[string]struct {
		preference string
		replicas   []Replica
		want       string // a replica, or a part of the error
	}{
		"the primary":                         {"PRIMARY", []Replica{with(n1, 1, ""), n2}, "n1"},
		"the primary may not":                 {"PRIMARY", []Replica{with(n1, 0, ""), n2}, "n1: its BACKUP_PRIORITY is 0"},
		"the primary cannot":                  {"PRIMARY", []Replica{with(n1, 50, "it has no backups enabled"), n2}, "n1: it has no backups enabled"},
		"a secondary, the first by name":      {"SECONDARY", []Replica{n1, n3, n2}, "n2"},
		"a secondary, by priority":            {"SECONDARY", []Replica{with(n1, 100, ""), n2, with(n3, 51, "")}, "n3"},
		"the next one where the best is away": {"SECONDARY", []Replica{n1, n2, with(n3, 90, away)}, "n2"},
		"no secondary is usable":              {"SECONDARY", []Replica{n1, with(n2, 0, ""), with(n3, 50, away)}, "n1"},
		"nobody is usable":                    {"SECONDARY", []Replica{with(n1, 0, ""), with(n2, 50, away)}, "n1: its BACKUP_PRIORITY is 0; n2: it does not answer"},
		"the default":                         {"", []Replica{n1, n2}, "n2"},
		"only secondaries":                    {"SECONDARY_ONLY", []Replica{with(n1, 100, ""), n2}, "n2"},
		"only secondaries, and none is there": {"SECONDARY_ONLY", []Replica{n1}, "there is no other replica"},
		"only secondaries, and none can":      {"SECONDARY_ONLY", []Replica{n1, with(n2, 50, away), with(n3, 0, "")}, "n2: it does not answer; n3: its BACKUP_PRIORITY is 0"},
		"any, by priority":                    {"NONE", []Replica{with(n1, 60, ""), n2, n3}, "n1"},
		"any, the first by name":              {"NONE", []Replica{n3, n2, n1}, "n1"},
		"no primary":                          {"NONE", []Replica{n2, n3}, "no primary at the moment"},
		"no primary, and only secondaries":    {"SECONDARY_ONLY", []Replica{n2, n3}, "no primary at the moment"},
	} {
		got, err := Place{Preference: tt.preference, Replicas: tt.replicas}.On()
		if err == nil && got.Name != tt.want || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %q, %v", name, got.Name, err)
		}
	}
}
