package groupcmd

import (
	"bytes"
	"encoding/json"
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
	unfit := plan
	unfit.Accounts = append(unfit.Accounts, recovery.Account{ID: "n3", Copy: "z", Position: ag.Position{Timeline: 1, LSN: 9}, Unfit: "its copy is under quarantine"})
	unfit.Recovery.Ahead = []ag.ReplicaID{"n3", "n2"}
	if _, err := confirm(unfit, consent{yes: true}); err == nil || !strings.Contains(err.Error(), "recover lead on n2") {
		t.Errorf("one that can lead is named first: %v", err)
	}
	unfit.Recovery.Ahead = []ag.ReplicaID{"n3"}
	table, err = confirm(unfit, consent{yes: true})
	if err == nil || !strings.Contains(err.Error(), "n3 cannot lead: its copy is under quarantine") || strings.Contains(err.Error(), "instead") || !strings.Contains(table, "AHEAD") {
		t.Errorf("it is under quarantine: %v\n%s", err, table)
	}
	plan.Recovery.Apart = []ag.ReplicaID{"n2"}
	plan.Accounts[0].Position.Timeline = 4
	table, err = confirm(plan, consent{yes: true})
	if err == nil || !strings.Contains(err.Error(), "later timeline") || !strings.Contains(err.Error(), "that of n1") || strings.Contains(err.Error(), "recover lead on") || !strings.Contains(table, "APART") {
		t.Errorf("each may have what the other lacks: %v\n%s", err, table)
	}
	plan.Accounts[1].Store = 7
	if _, err = confirm(plan, consent{yes: true}); err == nil || !strings.Contains(err.Error(), "Two quorums") {
		t.Errorf("two quorums were founded: %v", err)
	}
	if _, err = confirm(plan, consent{yes: true, loss: true}); err != nil {
		t.Errorf("--yes --allow-data-loss, after a quorum was founded twice: %v", err)
	}
	plan.Recovery.Ahead, plan.Recovery.Apart = nil, nil
	if _, err := confirm(plan, consent{yes: true}); err != nil {
		t.Errorf("nothing is lost: %v", err)
	}
}

// TestRefoundedAsJSON holds that a script learns who follows, who must never be started again, and whose commits are
// lost to the group.
func TestRefoundedAsJSON(t *testing.T) {
	plan := provision.RecoveryPlan{
		Recovery: recovery.Recovery{Epoch: ag.EpochRecord{Leader: "n1", Epoch: 9}, Ahead: []ag.ReplicaID{"n2"}, Group: ag.Group{Replicas: []ag.Replica{{ID: "n1"}, {ID: "n2"}}}},
		Gone:     []ag.ReplicaID{"n3"},
	}
	text, err := json.Marshal(refoundedAs("n1", "/n1", plan))
	const want = `{"node":"n1","epoch":9,"directory":"/n1","start":"coterie agent --node /n1","follow":["n2"],"lost":["n3"],"ahead":["n2"]}`
	if err != nil || string(text) != want {
		t.Errorf("%s, %v", text, err)
	}
	for name, want := range map[string]bool{"lead": true, "follow": true, "account": true} {
		c, _, err := Recover().Find([]string{name})
		if err != nil || (c.Flags().Lookup("json") != nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}
