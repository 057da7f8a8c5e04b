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
