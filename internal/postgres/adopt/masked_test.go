package adopt

import "testing"

// TestMaskedUnit holds that a record which the server's user wrote cannot have root unmask a unit of something else.
func TestMaskedUnit(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		cluster, unit, want string
		masked, refused     bool
	}{
		"not masked":           {cluster: "15/main", unit: "postgresql@15-main.service"},
		"Debian's":             {cluster: "15/main", unit: "postgresql@15-main.service", masked: true, want: "postgresql@15-main.service"},
		"of something else":    {cluster: "15/main", unit: "telnetd.service", masked: true, refused: true},
		"of another cluster":   {cluster: "15/main", unit: "postgresql@15-other.service", masked: true, refused: true},
		"an option":            {cluster: "15/main", unit: "--root=/tmp", masked: true, refused: true},
		"a name with an end":   {cluster: "15/main.service telnetd", unit: "postgresql@15-main.service telnetd.service", masked: true, refused: true},
		"of no cluster":        {unit: "telnetd.service", masked: true, refused: true},
		"none, and no cluster": {masked: true, refused: true},
	} {
		a := &Adopted{Cluster: Cluster{Name: tt.cluster, Data: "/nowhere/data"}, Start: Start{Unit: tt.unit, Masked: tt.masked}}
		if got, err := a.MaskedUnit(); got != tt.want || (err != nil) != tt.refused {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
