package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestWizardAndItsScriptMakeTheSameReplica adds a replica by the wizard in the browser, removes it, and adds it by the
// wizard's script: the configuration is the same.
func TestWizardAndItsScriptMakeTheSameReplica(t *testing.T) {
	b, g, s := browsed(t)
	d := newDesk(t, g, *s.Primary)
	p := g.consolePage(t, b, s, *s.Primary, "anna")
	p.screen("members")
	p.click("Add a member")
	p.Await(pageTime, "document.querySelector('dialog:modal #name')")
	p.Type("#name", "n9")
	for id, value := range map[string]string{"mode": "ASYNCHRONOUS_COMMIT", "readers": "NO", "routing": "NONE"} {
		p.Eval("{ const s = document.querySelector('#"+id+"'); s.value = '"+value+"'; s.dispatchEvent(new Event('change')); }", nil)
	}
	p.next("document.querySelector('dialog .findings li')")
	p.next("document.querySelector('dialog .script')")
	var script, command string
	p.Eval("document.querySelector('dialog .script').innerText", &script)
	p.next("document.querySelector('dialog .commands code')")
	p.Eval("document.querySelector('dialog .commands code').innerText", &command)
	words := strings.Fields(command)
	if len(words) != 5 || words[0] != "coterie" || words[1] != "join" || words[3] != "--name" || words[4] != "n9" {
		t.Fatal("the command is not that of a join")
	}
	must(t, d.new("join", words[2])...)
	p.Await(pageTime, "[...document.querySelectorAll('dialog .steps .done')].some(li => li.innerText.includes('It has its options'))")
	p.clean("the wizard")
	p.dismiss()
	byWizard := d.member(t)
	d.forget(t)

	d.node = filepath.Join(d.dir, "again")
	must(t, d.new("join", d.token(t).Token)...)
	file := filepath.Join(t.TempDir(), "script.sql")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	g.await(t, "n9 to be listed", func(lab.Status) bool {
		a := coterie(t, "sql", "--node", d.primary, "--csv", "-c", "SELECT count(*) FROM coterie.replicas WHERE name = 'n9'")
		return a.code == 0 && strings.HasSuffix(strings.TrimSpace(a.out), "\n1")
	})
	must(t, "sql", "--node", d.primary, "-f", file)
	byScript := d.member(t)
	d.forget(t)
	if diff := cmp.Diff(byWizard, byScript, everyField, cmpopts.IgnoreFields(ag.Replica{}, "KeyPin", "EtcdID")); diff != "" {
		t.Errorf("the wizard and its script make different replicas (-wizard +script):\n%s", diff)
	}
	if byScript.AvailabilityMode != ag.AsynchronousCommit || byScript.FailoverMode != ag.Manual || byScript.Allow == ag.AllowReadOnly {
		t.Errorf("made was %+v", byScript)
	}
	g.down(t)
}

// member returns n9 as the primary has it in its configuration.
func (d *desk) member(t *testing.T) ag.Replica {
	t.Helper()
	l, err := config.NewLayout(d.primary)
	if err != nil {
		t.Fatal(err)
	}
	var r ag.Replica
	d.g.await(t, "n9 to have its options", func(lab.Status) bool {
		var group ag.Group
		b, err := os.ReadFile(filepath.Join(l.State(), "group.json"))
		if err != nil || json.Unmarshal(b, &group) != nil {
			return false
		}
		r, _ = group.Replica("n9")
		return r.AvailabilityMode == ag.AsynchronousCommit
	})
	return r
}

// forget removes n9, which never ran.
func (d *desk) forget(t *testing.T) {
	t.Helper()
	for _, run := range runDirsOf(t, d.node) { // the directory of a node is its owner's to remove
		_ = os.RemoveAll(run)
	}
	must(t, "remove", "n9", "--yes", "--node", d.primary)
}
