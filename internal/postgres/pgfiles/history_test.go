package pgfiles

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coteriedb/coterie/internal/ag"
)

func TestParseHistory(t *testing.T) {
	got, err := ParseHistory("1\t0/3000000\tno recovery target specified\n\n# note\n4\t1/A0\tx # y\n", 9)
	want := []ag.TimelineEntry{{TLI: 4, Parent: 1, Switch: 0x3000000}, {TLI: 9, Parent: 4, Switch: 1<<32 + 0xA0}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	l := NewLineage(9, got)
	for lsn, tli := range map[ag.LSN]ag.Timeline{0: 1, 0x2FFFFFF: 1, 0x3000000: 4, 1<<32 + 0xA0: 9, MaxLSN - 1: 9} {
		if l.at(lsn) != tli {
			t.Errorf("%s is on timeline %d, want %d", lsn, l.at(lsn), tli)
		}
	}
	for p, want := range map[ag.Position]bool{
		{Timeline: 1, LSN: 0x3000000}: true,
		{Timeline: 1, LSN: 0x3000001}: false,
		{Timeline: 4, LSN: 0x3000000}: true,
		{Timeline: 4, LSN: 1}:         false,
		{Timeline: 2, LSN: 1}:         false,
		{Timeline: 9, LSN: MaxLSN}:    true,
	} {
		if l.Contains(p) != want {
			t.Errorf("the lineage contains %s: %v", p, !want)
		}
	}
	for _, bad := range []string{"", "# only a note\n", "x 0/1\n", "1\n", "1 z\n", "3 0/5\n1 0/6\n", "1 0/6\n3 0/5\n", "9 0/1\n"} {
		if got, err := ParseHistory(bad, 9); err == nil {
			t.Errorf("%q was read as %v", bad, got)
		}
	}
}

func TestCommonAncestor(t *testing.T) {
	one := NewLineage(1, nil)
	four := NewLineage(4, []ag.TimelineEntry{{TLI: 4, Parent: 1, Switch: 100}})
	five := NewLineage(5, []ag.TimelineEntry{{TLI: 5, Parent: 1, Switch: 90}})
	other := NewLineage(7, []ag.TimelineEntry{{TLI: 7, Parent: 4, Switch: 200}})
	other[0].TLI = 3
	for _, c := range []struct {
		a, b Lineage
		want ag.Position
	}{
		{one, four, ag.Position{Timeline: 1, LSN: 100}},
		{four, five, ag.Position{Timeline: 1, LSN: 90}},
		{four, four, ag.Position{Timeline: 4, LSN: MaxLSN}},
		{one, other, ag.Position{}},
	} {
		got, ok := CommonAncestor(c.a, c.b)
		if got != c.want || ok != (c.want.Timeline != 0) {
			t.Errorf("%v and %v part at %s, %v; want %s", c.a, c.b, got, ok, c.want)
		}
	}
}

func FuzzParseHistory(f *testing.F) {
	f.Add("1\t0/3000000\tno recovery target specified\n", uint32(2))
	f.Add("1 0/1\n2 0/2 x\n#\n", uint32(7))
	f.Add("", uint32(0))
	f.Fuzz(func(t *testing.T, content string, tli uint32) {
		entries, err := ParseHistory(content, ag.Timeline(tli))
		if err != nil {
			return
		}
		l := NewLineage(ag.Timeline(tli), entries)
		for k := 1; k < len(l); k++ {
			if l[k].begin != l[k-1].end || l[k].TLI <= l[k-1].TLI {
				t.Errorf("%q: lineage %v", content, l)
			}
		}
	})
}

func TestSegmentNames(t *testing.T) {
	for _, size := range []ag.LSN{1 << 20, 16 << 20, 1 << 30} {
		for _, lsn := range []ag.LSN{0, size, 1<<32 - 1, 1 << 32, 5<<32 + 3*size} {
			name := SegmentName(3, lsn/size, size)
			if seg, ok := SegmentNumber(name, size); !ok || seg != lsn/size {
				t.Errorf("segment of %s with size %d: %s is %d, %v", lsn, size, name, seg, ok)
			}
		}
	}
	if got := SegmentName(1, 0x123, 16<<20); got != "000000010000000100000023" {
		t.Errorf("segment 0x123 is %s", got)
	}
	if _, ok := SegmentNumber("00000002.history", 16<<20); ok {
		t.Error("a history file is no segment")
	}
}
