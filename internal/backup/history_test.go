package backup

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const size = defaultSegment

// archive returns the names of segments, given as timeline:first-last.
func archive(t *testing.T, ranges ...string) (names []string) {
	t.Helper()
	for _, r := range ranges {
		var tli uint32
		var from, to uint64
		if _, err := fmt.Sscanf(r, "%d:%d-%d", &tli, &from, &to); err != nil {
			t.Fatal(err)
		}
		for ; from <= to; from++ {
			names = append(names, segment{tli, from}.name(size))
		}
	}
	return names
}

// taken returns a backup of a timeline, from a segment to the next one.
func taken(tli uint32, no uint64, ended time.Time) Backup {
	return Backup{
		Label: fmt.Sprintf("%d-%d", tli, no), Kind: Full, Ended: ended, BeginWAL: segment{tli, no}.name(size), EndWAL: segment{tli, no + 1}.name(size),
		Begin: lsn(no * size), End: lsn((no+1)*size + 80),
	}
}

func lsn(at uint64) string { return fmt.Sprintf("%X/%X", at>>32, uint32(at)) }

// histories are those of a group that left timeline 2 out: 3 leaves 1 in segment 5, and 4 leaves 3 in segment 9.
var histories = map[uint32]string{
	3: "1\t" + lsn(5*size+100) + "\tno recovery target specified\n",
	4: "1\t" + lsn(5*size+100) + "\tno recovery target specified\n\n3\t" + lsn(9*size+100) + "\tno recovery target specified\n",
}

// TestSegments holds the names of segments of all sizes, at the ends of their ranges.
func TestSegments(t *testing.T) {
	for name, want := range map[string]segment{"000000010000000000000001": {1, 1}, "0000000A00000002000000FF": {10, 2*256 + 255}} {
		s, ok := parseSegment(name, size)
		if !ok || s != want || s.name(size) != name {
			t.Errorf("%s: %+v, %v, %s", name, s, ok, s.name(size))
		}
	}
	if s, ok := parseSegment("000000010000000200000003", 1<<30); !ok || s.no != 2*4+3 {
		t.Errorf("of 1 GB: %+v", s)
	}
	for _, name := range []string{"", "00000003.history", "000000000000000000000001", "00000001000000000000000g", "000000010000000000000001.partial"} {
		if s, ok := parseSegment(name, size); ok {
			t.Errorf("%q is %+v", name, s)
		}
	}
}

// TestGaps holds which WAL is missing behind a backup, over timelines of which ids are left out.
func TestGaps(t *testing.T) {
	b := taken(1, 2, time.Time{})
	for name, tt := range map[string]struct {
		wal  []string
		want []string
	}{
		"nothing": {archive(t, "1:2-4", "3:5-8", "4:9-12"), nil},
		"the segment of a fork is that of the next timeline": {archive(t, "1:2-5", "3:5-9", "4:9-12"), nil},
		"what a dead primary had not archived":               {archive(t, "1:2-4", "3:5-6", "4:9-12"), []string{"3:7-8"}},
		"in the middle, and at the beginning":                {archive(t, "1:3-4", "3:5-5", "3:7-8", "4:9-12"), []string{"1:2-2", "3:6-6"}},
		"over a fork it is one":                              {archive(t, "1:2-3", "3:7-8", "4:9-12"), []string{"1:4-6"}},
		"of another branch":                                  {archive(t, "1:2-9", "3:5-8", "4:9-12"), nil},
		"the newest is all there is":                         {archive(t, "1:2-4", "3:5-8"), nil},
	} {
		gaps, err := Catalog{WAL: tt.wal, Histories: histories}.Gaps(b, 4, 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, g := range gaps {
			from, _ := parseSegment(g.From, size)
			to, _ := parseSegment(g.To, size)
			if g.Count != to.no-from.no+1 {
				t.Errorf("%s: %+v", name, g)
			}
			got = append(got, fmt.Sprintf("%d:%d-%d", from.tli, from.no, to.no))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// TestGapsOfLargeSegments holds that no WAL is missing where a cluster with segments of another size goes on to the
// next part of their names, although nobody says how large they are.
func TestGapsOfLargeSegments(t *testing.T) {
	const large = 64 << 20
	b := Backup{BeginWAL: "00000001000000000000003E", EndWAL: "00000001000000000000003E", Begin: lsn(62*large + 40), End: lsn(63 * large)}
	c := Catalog{WAL: []string{b.EndWAL, "00000001000000000000003F", "000000010000000100000000", "000000010000000100000002"}}
	if gaps, err := c.Gaps(b, 1, 0); err != nil || len(gaps) != 1 || gaps[0] != (Gap{"000000010000000100000001", "000000010000000100000001", 1}) {
		t.Errorf("%+v, %v", gaps, err)
	}
}

// TestGapsOfAnArchiveThatCannotBeFollowed holds that damage is an error, and no endless search.
func TestGapsOfAnArchiveThatCannotBeFollowed(t *testing.T) {
	for name, h := range map[string]string{"none": "", "words": "a b c\n", "its own parent": "4\t0/1000000\tx\n", "no position": "3\tx\ty\n"} {
		histories := map[uint32]string{4: h}
		if name == "none" {
			histories = nil
		}
		if gaps, err := (Catalog{Histories: histories}).Gaps(taken(3, 2, time.Time{}), 4, 0); err == nil {
			t.Errorf("%s: %v", name, gaps)
		}
	}
	far := Catalog{WAL: []string{"00000001FFFFFFFF000000FF"}}
	if gaps, err := far.Gaps(taken(1, 2, time.Time{}), 1, 0); err == nil {
		t.Errorf("%d gaps over everything", len(gaps))
	}
}

// TestReaches holds which backups lie in the history of a timeline.
func TestReaches(t *testing.T) {
	for _, tt := range []struct {
		tli  uint32
		no   uint64
		want bool
	}{{1, 2, true}, {1, 4, true}, {1, 5, false}, {3, 6, true}, {3, 9, false}, {4, 10, true}, {2, 2, false}, {5, 2, false}} {
		b := taken(tt.tli, tt.no, time.Time{})
		if tt.no == 4 { // it ends in the segment of the fork, before it
			b.End = lsn(5*size + 80)
		}
		if got := b.Reaches(4, histories); got != tt.want {
			t.Errorf("a backup of timeline %d in segment %d: %v", tt.tli, tt.no, got)
		}
	}
}

// TestChoose holds which backup and which timeline lead to a target. PostgreSQL would look for timeline 2 behind 1, not
// find it, and take 1 for the newest.
func TestChoose(t *testing.T) {
	noon := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	c := Catalog{Histories: histories, WAL: archive(t, "1:2-4", "3:5-8", "4:9-12"), Backups: []Backup{
		taken(1, 2, noon), taken(1, 7, noon.Add(time.Hour)), taken(3, 6, noon.Add(2*time.Hour)), // the second is of a branch that ended
	}}
	for name, tt := range map[string]struct {
		target Target
		label  string
		want   string
	}{
		"the end":                       {Target{}, "", "3-6"},
		"a time between":                {Target{Time: noon.Add(90 * time.Minute)}, "", "1-2"},
		"a time after all":              {Target{Time: noon.Add(3 * time.Hour)}, "", "3-6"},
		"a time before":                 {Target{Time: noon.Add(-time.Hour)}, "", ""},
		"the moment of a backup's end":  {Target{Time: noon}, "", ""},
		"a position":                    {Target{LSN: lsn(5 * size)}, "", "1-2"},
		"a later position":              {Target{LSN: lsn(8 * size)}, "", "3-6"},
		"a position before":             {Target{LSN: lsn(1 * size)}, "", ""},
		"a name, which may be anywhere": {Target{Name: "before-release"}, "", "1-2"},
		"a name behind a backup":        {Target{Name: "before-release"}, "3-6", "3-6"},
		"a backup of another branch":    {Target{}, "1-7", ""},
	} {
		b, tli, err := c.Choose(tt.target, tt.label)
		if b.Label != tt.want || (err == nil) != (tt.want != "") || err == nil && tli != 4 {
			t.Errorf("%s: %s on timeline %d, %v", name, b.Label, tli, err)
		}
	}
	if _, _, err := (Catalog{}).Choose(Target{}, ""); err == nil || !strings.Contains(err.Error(), "no backup") {
		t.Error(err)
	}
}

// TestParseTarget holds that a mistyped time is no name of a restore point.
func TestParseTarget(t *testing.T) {
	zone := time.FixedZone("", 3600)
	for in, want := range map[string]string{
		"latest": "the end of the archive", "0/3000050": "the position 0/3000050", "2/ab": "the position 2/AB", "before-release": "the restore point before-release",
		"2026-11-25 12:00:00+00": "the time 2026-11-25 12:00:00Z", "2026-11-25T12:00:00Z": "the time 2026-11-25 12:00:00Z", "2026-11-25 12:00:00.25": "the time 2026-11-25 12:00:00.25+01:00",
		"2026-11-25 12:00": "the time 2026-11-25 12:00:00+01:00", "2026-11-25 12.00": "", "2026-13-01 00:00:00": "", "": "", "a'b": "", "a\nb": "", "-x": "the restore point -x",
		"12:00": "", "12:00:00+00": "", "25.11.2026 12:00": "", "25/11/26": "", "11-25-2026": "", "25.11. 9:30": "", "20261125 12:00": "",
		"release 1.2.3": "the restore point release 1.2.3", "v12:00": "the restore point v12:00", "12": "the restore point 12", "1.2": "the restore point 1.2",
	} {
		got, err := ParseTarget(in, zone)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("%q: %s, %v", in, got, err)
		}
	}
}

// TestReachable holds that a time of the future is refused, whatever its zone, and that other targets are not.
func TestReachable(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.FixedZone("", 3600))
	for _, tt := range []struct {
		target string
		want   bool
	}{
		{"2026-11-25 11:30:00Z", false}, {"2026-11-25 11:00:30Z", true}, {"2026-11-25 11:30:00+01", true}, {"2126-11-25 12:00:00Z", false}, {"latest", true}, {"0/3000050", true}, {"before", true},
	} {
		target, err := ParseTarget(tt.target, time.UTC)
		if err != nil {
			t.Fatal(err)
		}
		if err := target.Reachable(now); (err == nil) != tt.want || err != nil && !strings.Contains(err.Error(), "it is 2026-11-25 11:00:00Z now") {
			t.Errorf("%s: %v", tt.target, err)
		}
	}
}

// TestReach holds how far a recovery to the end of the archive comes: to the last segment before the first gap.
func TestReach(t *testing.T) {
	for name, tt := range map[string]struct {
		wal  []string
		want string
	}{
		"whole":             {[]string{"1:2-4", "3:5-8", "4:9-12"}, segment{4, 12}.name(size)},
		"a gap":             {[]string{"1:2-4", "3:5-6", "3:8-8", "4:9-12"}, segment{3, 6}.name(size)},
		"none of the first": {[]string{"1:3-4", "3:5-8", "4:9-12"}, ""},
	} {
		c := Catalog{Histories: histories, WAL: archive(t, tt.wal...)}
		got, at := c.Reach(taken(1, 2, time.Time{}), 4)
		if s, ok := parseSegment(got, size); got != tt.want || ok && at != s.no*size {
			t.Errorf("%s: %q at %x", name, got, at)
		}
	}
}
