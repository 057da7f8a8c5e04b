package decisions

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

func decide(d *Log, rule ag.Rule, epoch ag.Epoch, why string) (Decision, bool) {
	v := ag.View{Self: "a", Quorum: true, Group: ag.Group{HBA: strings.Repeat("x", 1000)}}
	v.Record.Epoch.Epoch = epoch
	made, _, keep := d.Note(v, ag.Plan{Rule: rule, Because: why})
	return made, keep
}

func TestDecisionsOutliveTheAgentAndStayShort(t *testing.T) {
	dir := t.TempDir()
	d := NewLog()
	if err := d.Open(dir); err != nil {
		t.Fatal(err)
	}
	const many = 4000
	for i := range many {
		made, keep := decide(d, ag.RuleClaim, ag.Epoch(i), fmt.Sprintf("reason %d", i))
		if !keep {
			t.Fatal("a claim is not kept")
		}
		if err := d.Write(made); err != nil {
			t.Fatal(err)
		}
	}
	total := int64(0)
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		total += st.Size()
	}
	if total > 2*decisionFile || len(files) != 2 {
		t.Errorf("%d bytes in %v", total, files)
	}
	if err := os.WriteFile(filepath.Join(dir, "cut"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "decisions.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"node":"a","rule":"cl`); err != nil { // a crash
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	next := NewLog()
	if err := next.Open(dir); err != nil {
		t.Fatal(err)
	}
	if n := len(next.kept); n == 0 || next.kept[n-1].Because != fmt.Sprintf("reason %d", many-1) || next.kept[n-1].View.Group.HBA != "" {
		t.Errorf("%d kept", n)
	}
	if made, _ := decide(next, ag.RuleClaim, 1, "again"); made.Seq != many+1 {
		t.Errorf("sequence %d", made.Seq)
	}
}

func TestEverydayDecisionsAreWrittenOnce(t *testing.T) {
	d := NewLog()
	kept := 0
	for i := range 100 {
		for _, r := range []ag.Rule{ag.RuleServe, ag.RuleSync, ag.RuleBusy} {
			if _, keep := decide(d, r, 1, fmt.Sprint(i)); keep {
				kept++
			}
		}
	}
	if kept != 1 {
		t.Errorf("%d written", kept)
	}
	if _, keep := decide(d, ag.RuleServe, 2, "another epoch"); !keep {
		t.Error("the first of an epoch is not written")
	}
}
