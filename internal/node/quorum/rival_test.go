package quorum

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/recovery"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/membership"
)

// recovered has an operator have run a recovery on the node, with those members given up for lost.
func (b *bed) recovered(t *testing.T, gone ...ag.Replica) {
	t.Helper()
	f := membership.Founding{Group: b.etcd.group, Epoch: ag.EpochRecord{Epoch: 9, Leader: "n1"}, Token: "g-9", Gone: gone}
	if err := durable.ReplaceJSON(b.Layout.FoundingFile(), f); err != nil {
		t.Fatal(err)
	}
}

// A node founds a quorum only if no member claims another one, and after the endpoint tells of its own founding. A
// refusal leaves the founding record, so that the next start asks again.
func TestFounderAsksTheOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		claim  recovery.Claim
		err    error
		founds bool
	}{
		"silent":            {recovery.Claim{}, errTest, true},
		"follows it":        {recovery.Claim{Epoch: 9, Leader: "n1", Answers: true}, nil, true},
		"founds, too":       {recovery.Claim{Epoch: 9, Leader: "n2", Founds: true}, nil, false},
		"leads another one": {recovery.Claim{Epoch: 12, Leader: "n2", Founds: true, Answers: true}, nil, false},
	} {
		b := newBed(t)
		b.recovered(t)
		b.AskClaim = func(_ context.Context, r ag.Replica) (recovery.Claim, error) {
			if !b.Founds().Founds {
				t.Errorf("%s: it asks before it tells", name)
			}
			if r.ID == "n2" {
				return tt.claim, tt.err
			}
			return recovery.Claim{}, errTest
		}
		b.startErr = errTest // of etcd's member: founding has begun
		err := b.foundGroup(t.Context())
		var refused fail.Error
		if tt.founds != errors.Is(err, errTest) || !tt.founds && (!errors.As(err, &refused) || !strings.Contains(err.Error(), "n2")) {
			t.Errorf("%s: %v", name, err)
		}
		if len(b.started) > 0 != tt.founds {
			t.Errorf("%s: a member is started: %v", name, b.started)
		}
		if _, err := os.Stat(b.Layout.FoundingFile()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Of two nodes that found at once, and reach each other as soon as each tells, at most one does.
func TestTwoFoundAtOnce(t *testing.T) {
	for _, first := range []int{0, 1} {
		both := []*bed{newBed(t), newBed(t)}
		both[1].self = "n2"
		tells := []bool{true, first == 1} // the endpoint of the second may not be there yet
		var founded []int
		for i, b := range both {
			b.recovered(t)
			b.AskClaim = func(_ context.Context, r ag.Replica) (recovery.Claim, error) {
				if other := 1 - i; r.ID == both[other].self && tells[other] {
					return both[other].Founds(), nil
				}
				return recovery.Claim{}, errTest
			}
		}
		for i, b := range both {
			tells[i] = true
			f, err := membership.ReadFounding(b.Layout)
			if err != nil {
				t.Fatal(err)
			}
			if b.mayFound(t.Context(), f) == nil {
				founded = append(founded, i)
			}
		}
		if len(founded) > 1 || first == 0 && !slices.Equal(founded, []int{0}) {
			t.Errorf("founded by %v", founded)
		}
	}
}

// A replica that was given up for lost and proves that it is there keeps a quorum from being founded beside it. A
// stranger at its address does not, nor does a witness, which may be stolen.
func TestLostMemberAnswers(t *testing.T) {
	replica, witness := ag.Replica{ID: "n3", AvailabilityMode: ag.SynchronousCommit}, ag.Replica{ID: "w3", AvailabilityMode: ag.ConfigurationOnly}
	for _, tt := range []struct {
		name string
		gone ag.Replica
		err  error
		says string
	}{
		{"it answers", replica, nil, "n3 was given up for lost"},
		{"a stranger does, or nobody", replica, errTest, ""},
		{"a witness answers", witness, nil, ""},
	} {
		b := newBed(t)
		b.recovered(t, tt.gone)
		b.AskClaim = func(context.Context, ag.Replica) (recovery.Claim, error) { return recovery.Claim{}, errTest }
		b.Answers = func(context.Context, ag.Replica) error { return tt.err }
		f, err := membership.ReadFounding(b.Layout)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.mayFound(t.Context(), f); (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
