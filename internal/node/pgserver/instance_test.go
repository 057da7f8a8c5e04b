package pgserver

import (
	"slices"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// TestDoubled finds members for which PostgreSQL counts more than one walsender as one acknowledgement each.
func TestDoubled(t *testing.T) {
	t.Parallel()
	row := func(m ag.ReplicaID, e ag.Epoch) postgres.Walsender {
		return postgres.Walsender{Application: settings.Application(m, e)}
	}
	for _, tt := range []struct {
		name string
		rows []postgres.Walsender
		want []ag.ReplicaID
	}{
		{"none", nil, nil},
		{"one each", []postgres.Walsender{row("n2", 3), row("n3", 3)}, nil},
		{"two of one", []postgres.Walsender{row("n2", 3), row("n3", 3), row("n2", 3)}, []ag.ReplicaID{"n2"}},
		{"three of one count once", []postgres.Walsender{row("n2", 3), row("n2", 3), row("n2", 3)}, []ag.ReplicaID{"n2"}},
		{"other epochs have other names", []postgres.Walsender{row("n2", 3), row("n2", 4)}, nil},
		{"names of others", []postgres.Walsender{{Application: "pg_receivewal"}, {Application: "pg_receivewal"}}, nil},
	} {
		if got := doubled(tt.rows); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestStrays finds walsenders in a member's name that this agent did not open, also where the member has no stream of
// its own.
func TestStrays(t *testing.T) {
	t.Parallel()
	row := func(pid int, name, state string) postgres.Walsender {
		return postgres.Walsender{PID: pid, Application: name, State: state}
	}
	owns := func(pid int) bool { return pid < 100 }
	for _, tt := range []struct {
		name string
		rows []postgres.Walsender
		want []ag.ReplicaID
	}{
		{"the member's own", []postgres.Walsender{row(1, "cot_n2_3", "streaming")}, nil},
		{"one stray", []postgres.Walsender{row(100, "cot_n2_3", "streaming")}, []ag.ReplicaID{"n2"}},
		{"in other letters", []postgres.Walsender{row(100, "COT_N2_3", "catchup")}, []ag.ReplicaID{"n2"}},
		{"beside the member's own", []postgres.Walsender{row(1, "cot_n2_3", "streaming"), row(100, "cot_n2_3", "streaming")}, []ag.ReplicaID{"n2"}},
		{"not begun", []postgres.Walsender{row(100, "cot_n2_3", "startup")}, nil},
		{"a name of nobody", []postgres.Walsender{row(100, "pg_receivewal", "streaming"), row(101, "cot_seed_n2", "backup")}, nil},
	} {
		i := &Instance{Owns: owns}
		if got := i.notOurs(tt.rows); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
