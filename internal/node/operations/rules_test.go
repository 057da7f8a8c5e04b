package operations

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/ag"
)

// TestRulesAreJudgedFirst holds that rules which no listener could honour are not written, and that what an
// administrator may not expect of others is said.
func TestRulesAreJudgedFirst(t *testing.T) {
	t.Parallel()
	const before = "host all all all md5\n"
	for text, tt := range map[string]struct {
		bad           error
		warned, after string
	}{
		"SET HBA (N'hostssl all all all scram-sha-256')": {after: "hostssl all all all scram-sha-256\n"},
		"SET HBA (N'host all all all ldap')":             {bad: errors.New("line 1: method ldap"), after: before},
		"SET HBA (N'host all all all reject')":           {warned: "nobody is admitted", after: "host all all all reject\n"},
		"RESET HBA":                                      {bad: errors.New("asked about nothing")},
	} {
		b := newBed(t)
		b.store.x.Group.HBA = before
		if b.clients.badRules = tt.bad; tt.warned != "" {
			b.clients.warnings = []string{tt.warned}
		}
		_, notices, err := b.run(t, alter+text+" WITH NOWAIT")
		if refused := b.store.x.Group.HBA == before; (err != nil) != refused || err != nil && (!strings.Contains(err.Error(), tt.bad.Error()) || console.AsError(err).State != "F0000") {
			t.Errorf("%s: %v", text, err)
		}
		if !strings.Contains(notices, tt.warned) || b.store.x.Group.HBA != tt.after {
			t.Errorf("%s: %q, and the group has %q", text, notices, b.store.x.Group.HBA)
		}
	}
}

// TestRulesAreHeldAgainstPresentClients holds from which addresses clients come: those of the sessions of every node,
// and those of the members, by their devices where an endpoint is a name.
func TestRulesAreHeldAgainstPresentClients(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for i := range b.store.x.Group.Replicas {
		b.store.x.Group.Replicas[i].Endpoint = "192.0.2." + string(rune('1'+i)) + ":5022"
	}
	b.store.x.Group.Replicas[1].Endpoint = "db2.example:5022"
	b.status.facts = catalog.Facts{Nodes: map[ag.ReplicaID]catalog.Node{
		"a": {Sessions: []catalog.Session{{Client: "198.51.100.9:40000"}, {Client: "local"}, {Client: "[fd00::9]:40000"}}},
		"b": {Networks: []netip.Prefix{netip.MustParsePrefix("203.0.113.5/24")}},
	}}
	if _, _, err := b.run(t, alter+"SET HBA (N'host all all all md5') WITH NOWAIT"); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(b.clients.from); got != "[198.51.100.9 fd00::9 192.0.2.1 203.0.113.5 192.0.2.3 192.0.2.4]" {
		t.Error(got)
	}
}
