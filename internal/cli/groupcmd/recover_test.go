package groupcmd

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/recovery"
	"github.com/coteriedb/coterie/internal/provision"
)

// --yes alone never loses commits that are known to be on another member.
func TestRecoverLeadNeedsConsentToLoss(t *testing.T) {
	plan := provision.RecoveryPlan{
		Recovery: recovery.Recovery{Epoch: ag.EpochRecord{Leader: "n1"}, Ahead: []ag.ReplicaID{"n2"}},
		Accounts: []recovery.Account{{ID: "n1", Copy: "x"}, {ID: "n2", Copy: "y"}},
	}
	confirm := func(p provision.RecoveryPlan, ok consent) (table string, err error) {
		var out bytes.Buffer
		c := &cobra.Command{}
		c.SetErr(&out)
		c.SetOut(&out)
		err = confirmRecovery(c, "g", p, ok)
		return out.String(), err
	}
	table, err := confirm(plan, consent{yes: true})
	if err == nil || !strings.Contains(err.Error(), "recover lead on n2") || !strings.Contains(err.Error(), "--allow-data-loss") || !strings.Contains(table, "AHEAD") {
		t.Errorf("--yes: %v\n%s", err, table)
	}
	if _, err := confirm(plan, consent{yes: true, loss: true}); err != nil {
		t.Errorf("--yes --allow-data-loss: %v", err)
	}
	if _, err := confirm(plan, consent{loss: true}); err == nil || !strings.Contains(err.Error(), "add --yes") {
		t.Errorf("--allow-data-loss alone: %v", err)
	}
	plan.Recovery.Ahead = nil
	if _, err := confirm(plan, consent{yes: true}); err != nil {
		t.Errorf("nothing is lost: %v", err)
	}
}
