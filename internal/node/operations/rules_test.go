package operations

import (
	"errors"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/console"
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
