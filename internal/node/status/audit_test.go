package status

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/catalog"
)

// TestAudit holds that the audit is bounded, that denials displace no act and fill no log, and that the journal has it
// in order.
func TestAudit(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	for i := range auditActs + 5 {
		b.NoteAct(log, catalog.Act{User: "olaf", Via: "API", From: "10.0.0.7", Operation: fmt.Sprint("ALTER ", i), Result: catalog.ActDone})
	}
	for range 20 * auditDenials {
		b.NoteAct(log, catalog.Act{User: "vera", Operation: strings.Repeat("ü", auditText), Message: "no", Result: catalog.ActDenied})
	}
	acts := b.Journal().Acts
	if len(acts) != auditActs+auditDenials || acts[0].Operation != "ALTER 5" || acts[auditActs].Result != catalog.ActDenied || len(acts[auditActs].Operation) > auditText+3 {
		t.Errorf("%d acts are kept, the first is %+v, the first denial %+v", len(acts), acts[0], acts[min(auditActs, len(acts)-1)])
	}
	if n := strings.Count(text.String(), "user=vera"); n < int(eachDenials.Burst) || n > int(eachDenials.Burst)+5 {
		t.Errorf("the log has %d lines about denials", n)
	}
	if n := strings.Count(text.String(), "user=olaf"); n != auditActs+5 || !strings.Contains(text.String(), "client=10.0.0.7") {
		t.Errorf("the log has %d lines about acts", n)
	}
}
