package register

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/measure/session"
)

func op(k Kind, value int64, call, ret time.Duration) Op {
	return Op{Kind: k, Value: value, Call: call, Return: ret}
}

func with(o Op, out session.Outcome) Op {
	o.Outcome = out
	return o
}

func swap(expect, value int64, done bool, call, ret time.Duration) Op {
	return Op{Kind: Swap, Expect: expect, Value: value, Swapped: done, Call: call, Return: ret}
}

// TestCheck holds that each planted violation is found, and no other.
func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name string
		ops  []Op
		bad  bool
	}{
		{"one after the other", []Op{op(Write, 1, 0, 1), op(Read, 1, 2, 3), op(Write, 2, 4, 5), op(Read, 2, 6, 7)}, false},
		{"a stale read", []Op{op(Write, 1, 0, 1), op(Write, 2, 2, 3), op(Read, 1, 4, 5)}, true},
		{"a read during the write may see either", []Op{op(Write, 1, 0, 1), op(Write, 2, 2, 6), op(Read, 1, 3, 4), op(Read, 2, 5, 7)}, false},
		{"and not first the new, then the old", []Op{op(Write, 1, 0, 1), op(Write, 2, 2, 8), op(Read, 2, 3, 4), op(Read, 1, 5, 6)}, true},
		{"a lost write", []Op{op(Write, 1, 0, 1), op(Read, 0, 2, 3)}, true},
		{"a write in doubt that took effect", []Op{with(op(Write, 1, 0, 1), session.Unknown), op(Read, 0, 2, 3), op(Read, 1, 4, 5)}, false},
		{"a write in doubt that did not", []Op{with(op(Write, 1, 0, 1), session.Unknown), op(Read, 0, 2, 3)}, false},
		{"a write in doubt that took effect and was lost", []Op{with(op(Write, 1, 0, 1), session.Unknown), op(Read, 1, 2, 3), op(Read, 0, 4, 5)}, true},
		{"a write that was refused and is there", []Op{with(op(Write, 1, 0, 1), session.Fail), op(Read, 1, 2, 3)}, true},
		{"a read in doubt says nothing", []Op{op(Write, 1, 0, 1), with(op(Read, 0, 2, 3), session.Unknown)}, false},
		{"two swaps of one value", []Op{swap(0, 1, true, 0, 1), swap(0, 2, true, 0, 1)}, true},
		{"one of two swaps", []Op{swap(0, 1, true, 0, 1), swap(0, 2, false, 0, 1), op(Read, 1, 2, 3)}, false},
		{"a swap that says no and had to say yes", []Op{swap(0, 1, false, 0, 1)}, true},
		{"a swap in doubt", []Op{with(swap(0, 1, false, 0, 1), session.Unknown), op(Read, 0, 2, 3), op(Read, 1, 4, 5)}, false},
		{"a write in doubt that nobody read, but that a swap met", []Op{with(op(Write, 1, 0, 1), session.Unknown), swap(0, 2, false, 2, 3)}, false},
		{"a swap in doubt cannot have found what was not there", []Op{op(Write, 5, 0, 1), with(swap(0, 1, false, 2, 3), session.Unknown), op(Read, 1, 4, 5)}, true},
	} {
		bad, undecided := Check(tt.ops, time.Minute)
		if (len(bad) > 0) != tt.bad || undecided > 0 {
			t.Errorf("%s: %v, %d undecided", tt.name, bad, undecided)
		}
	}
	if bad, _ := Check([]Op{op(Write, 1, 0, 1), {Key: 7, Kind: Read, Value: 1, Call: 2, Return: 3}}, time.Minute); len(bad) != 1 || bad[0].Key != 7 || len(bad[0].History) != 1 {
		t.Errorf("registers are not told apart: %v", bad)
	}
}

// TestCheckAroundALoss holds that answers before a moment at which writes may be lost are judged, later ones too, and
// neither by the other.
func TestCheckAroundALoss(t *testing.T) {
	const at = 10
	for _, tt := range []struct {
		name          string
		ops           []Op
		before, since bool // a violation is found
	}{
		{"a write that is lost", []Op{op(Write, 1, 0, 1), op(Read, 0, 11, 12)}, false, false},
		{"a write that is lost and comes back", []Op{op(Write, 1, 0, 1), op(Read, 0, 11, 12), op(Read, 1, 13, 14)}, false, true},
		{"a write that was under way takes effect", []Op{op(Write, 1, 8, 13), op(Read, 0, 11, 12), op(Read, 1, 14, 15)}, false, false},
		{"a write in doubt takes effect", []Op{with(op(Write, 1, 2, 3), session.Unknown), op(Read, 0, 11, 12), op(Read, 1, 14, 15)}, false, false},
		{"a write that was refused takes effect", []Op{with(op(Write, 1, 2, 3), session.Fail), op(Read, 0, 11, 12), op(Read, 1, 14, 15)}, false, true},
		{"a write that is lost before", []Op{op(Write, 1, 0, 1), op(Read, 0, 2, 3)}, true, false},
		{"a later write that is lost", []Op{op(Write, 1, 11, 12), op(Read, 0, 13, 14)}, false, true},
		{"a swap of what nobody knows", []Op{swap(7, 1, true, 11, 12), op(Read, 1, 13, 14)}, false, false},
		{"two swaps of what nobody knows", []Op{swap(7, 1, true, 11, 12), swap(7, 2, true, 13, 14)}, false, true},
		{"a swap that was refused", []Op{swap(7, 1, false, 11, 12), op(Read, 3, 13, 14)}, false, false},
		{"a read that was under way says nothing", []Op{op(Write, 1, 0, 1), op(Read, 1, 9, 14), op(Read, 0, 11, 12), op(Read, 0, 15, 16)}, false, false},
	} {
		if bad, _ := CheckUntil(tt.ops, at, time.Minute); (len(bad) > 0) != tt.before {
			t.Errorf("%s: before: %v", tt.name, bad)
		}
		if bad, _ := CheckSince(tt.ops, at, time.Minute); (len(bad) > 0) != tt.since {
			t.Errorf("%s: since: %v", tt.name, bad)
		}
	}
}

func TestBackwards(t *testing.T) {
	seen := []Sighting{{Session: 1, Count: 5}, {Session: 2, Count: 3}, {Session: 1, Count: 6}, {Session: 2, Count: 3}, {Session: 1, Count: 5}}
	if back := Backwards(seen[:4]); len(back) != 0 {
		t.Errorf("two sessions are not told apart: %v", back)
	}
	if back := Backwards(seen); len(back) != 1 || back[0].Session != 1 {
		t.Errorf("a session that went back was not found: %v", back)
	}
	moved := []Sighting{{Server: "a", Count: 7, Acknowledged: 6}, {Server: "b", Count: 6, Acknowledged: 6}}
	if back := Backwards(moved); len(back) != 0 {
		t.Errorf("what was not acknowledged may be lost with its primary: %v", back)
	}
	moved[0].Acknowledged = 7
	if back := Backwards(moved); len(back) != 1 || back[0].Server != "b" {
		t.Errorf("what was acknowledged went back: %v", back)
	}
}
