package decisions

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// made is a decision as a node would have recorded it.
func made(node ag.ReplicaID, seq uint64, clock int, rule ag.Rule, e ag.EpochRecord, rev int64) Decision {
	d := Decision{Node: node, Seq: seq, At: time.Unix(int64(clock), 0), Rule: rule, Because: fmt.Sprint(rule, seq), Epoch: e.Epoch}
	d.View.Self, d.View.Record.Epoch, d.View.Record.Revs.Lead = node, e, rev
	return d
}

func TestStory(t *testing.T) {
	one := ag.EpochRecord{Epoch: 1, Phase: ag.PhaseLead, Leader: "a"}
	sealing := ag.EpochRecord{Epoch: 2, Phase: ag.PhaseSeal, Leader: "b"}
	two := ag.EpochRecord{Epoch: 2, Phase: ag.PhaseLead, Leader: "b", Reason: "a released the leadership"}
	// The clock of b is an hour slow, which must not matter.
	a := []Decision{
		made("a", 1, 5000, ag.RuleLead, one, 3), made("a", 2, 5001, ag.RuleServe, one, 4), made("a", 3, 5060, ag.RuleStepDown, one, 60),
		made("a", 4, 5061, ag.RuleFenceDeposed, sealing, 63), made("a", 5, 5063, ag.RuleRewind, two, 70),
	}
	b := []Decision{
		made("b", 7, 1401, ag.RuleFollow, one, 5), made("b", 8, 1402, ag.RuleStandBy, one, 6), made("b", 9, 1460, ag.RuleClaim, one, 61),
		made("b", 10, 1461, ag.RuleChoose, sealing, 64), made("b", 11, 1462, ag.RuleServe, two, 66),
	}
	b[4].Open = true
	again := b[3]
	again.Seq = 12
	again.View.Record.Revs.Lead = 65
	b = append(b[:4:4], again, b[4])
	b[5].Seq = 13
	all := Merge(b, a)
	changes := Changes(all)
	if len(changes) != 1 || changes[0].From != "a" || changes[0].To != "b" || changes[0].Before != 1 || changes[0].Epoch != 2 || changes[0].Reason != two.Reason {
		t.Fatalf("%+v", changes)
	}
	var got []string
	for _, d := range changes[0].Tell(all).Decision {
		got = append(got, fmt.Sprint(d.Node, " ", d.Rule))
	}
	want := []string{"a step-down", "b claim", "a fence-deposed", "b choose", "b serve", "a rewind"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestARestartIsNoFailover(t *testing.T) {
	all := []Decision{
		made("a", 1, 1, ag.RuleServe, ag.EpochRecord{Epoch: 4, Phase: ag.PhaseLead, Leader: "a"}, 1),
		made("a", 2, 2, ag.RuleServe, ag.EpochRecord{Epoch: 5, Phase: ag.PhaseLead, Leader: "a"}, 9),
	}
	if c := Changes(all); len(c) != 1 || c[0].From != "a" || c[0].To != "a" {
		t.Errorf("%+v", c)
	}
	if c := Changes(all[:1]); len(c) != 0 {
		t.Errorf("%+v", c)
	}
}

// TestAFailoverThatWasGivenUp: a planned failover that was given up is told as such, and the next one, to the same
// replica, is explained by its own decision.
func TestAFailoverThatWasGivenUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := NewLog()
	if err := d.Open(dir); err != nil {
		t.Fatal(err)
	}
	v := ag.View{Self: "a", Quorum: true}
	v.Record.Epoch = ag.EpochRecord{Epoch: 1, Phase: ag.PhaseLead, Leader: "a"}
	begin := func() Decision {
		made, isNew, keep := d.Note(v, ag.Plan{Rule: ag.RuleHandOver, Because: "planned failover to b"})
		if !isNew || !keep {
			t.Fatal("it is not recorded")
		}
		return made
	}
	written := []Decision{begin(), d.GiveUp(v, "b", errors.New("given up, a serves on"))}
	serve, _, _ := d.Note(v, ag.Plan{Rule: ag.RuleServe, Because: "well", Open: true})
	written = append(written, serve, begin())
	for _, x := range written {
		if err := d.Write(x); err != nil {
			t.Fatal(err)
		}
	}
	read, err := Read(dir)
	if err != nil || len(read) != 4 {
		t.Fatalf("%d decisions, %v", len(read), err)
	}
	if m := read[0].Meaning(); m != "began a planned failover" {
		t.Error(m)
	}
	if x := read[1]; x.Meaning() != "gave up a planned failover" || x.Because != "planned failover to b: given up, a serves on" || x.Node != "a" || x.Epoch != 1 {
		t.Errorf("%s: %+v", x.Meaning(), x)
	}
	told := Change{Epoch: 2, Before: 1, From: "a", To: "b"}.Tell(read).Decision
	if len(told) != 1 || told[0].Seq != read[3].Seq {
		t.Errorf("told %+v, want only the decision %d", told, read[3].Seq)
	}
	if told = (Change{Epoch: 2, Before: 1, From: "a", To: "b"}).Tell(read[:3]).Decision; len(told) != 0 {
		t.Errorf("a failover that was given up is told as a part of another: %+v", told)
	}
}
