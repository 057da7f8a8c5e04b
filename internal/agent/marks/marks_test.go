package marks

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/durable"
)

// A copy that is about to get another identity is known by either.
func TestCopyIs(t *testing.T) {
	for _, tt := range []struct {
		mark       Copy
		inside, id ag.CopyID
		known      bool
	}{
		{Copy{Copy: "c"}, "c", "c", true},
		{Copy{Copy: "c"}, "d", "c", false},
		{Copy{Copy: "c"}, "", "c", false},
		{Copy{Copy: "c", Next: "d"}, "c", "c", true},
		{Copy{Copy: "c", Next: "d"}, "d", "d", true},
		{Copy{Copy: "c", Next: "d"}, "e", "c", false},
	} {
		if id, known := tt.mark.Is(tt.inside); id != tt.id || known != tt.known {
			t.Errorf("%+v of %q: %q, %t", tt.mark, tt.inside, id, known)
		}
	}
}

// Promotions that do not come to lead, one after the other, begin where the first did; one of another log where it is.
func TestPromotionBegins(t *testing.T) {
	at := func(tli ag.Timeline, lsn ag.LSN) ag.Position { return ag.Position{Timeline: tli, LSN: lsn} }
	first := Promotion{}.Next(5, 7, at(4, 100))
	again := first.Next(6, 8, at(7, 130))
	other := first.Next(9, 12, at(10, 300))
	if first != (Promotion{5, 7, at(4, 100), 7}) || again != (Promotion{6, 8, at(4, 100), 7}) || other != (Promotion{9, 12, at(10, 300), 12}) {
		t.Errorf("%+v, %+v, %+v", first, again, other)
	}
	// the second was marked, and had not begun
	if third := again.Next(7, 9, at(7, 130)); third != (Promotion{7, 9, at(4, 100), 7}) || again.Unled(at(7, 130)) != at(4, 100) || third.Unled(at(7, 130)) != at(4, 100) {
		t.Errorf("after one that had not begun: %+v", third)
	}
	for _, is := range []ag.Position{at(4, 100), at(4, 170), at(10, 300)} { // the tail of an earlier leader was fetched; it follows a later one
		if from := again.Unled(is); from != (ag.Position{}) {
			t.Errorf("a log that ends at %s counts up to %s", is, from)
		}
	}
	if old := (Promotion{Epoch: 5, TLI: 7}).Next(6, 8, at(7, 130)); old.From != at(7, 130) {
		t.Errorf("after a mark of an earlier version: %+v", old)
	}
}

// A promotion replays everything that its server had received, and the mark may not know all of that. The history has
// the place, also of the first of several promotions.
func TestPromotionLeavesWhereItsHistorySays(t *testing.T) {
	at := func(tli ag.Timeline, lsn ag.LSN) ag.Position { return ag.Position{Timeline: tli, LSN: lsn} }
	p := Promotion{}.Next(5, 7, at(4, 100))
	again := p.Next(6, 8, at(7, 190))
	h := []ag.TimelineEntry{{TLI: 4, Parent: 2, Switch: 50}, {TLI: 7, Parent: 4, Switch: 180}}
	then := append(h, ag.TimelineEntry{TLI: 8, Parent: 7, Switch: 190})
	for _, tt := range []struct {
		mark     Promotion
		history  []ag.TimelineEntry
		at, left ag.Position
	}{
		{p, h, at(7, 185), at(4, 180)},
		{again, then, at(8, 195), at(4, 180)},
		{again, h, at(7, 190), at(4, 180)}, // the second had not begun
		{p, h[:1], at(4, 180), at(0, 0)},   // nor had the first
		{p, nil, at(7, 185), at(4, 100)},
		{Promotion{}, h, at(7, 185), at(0, 0)},
	} {
		if left := tt.mark.UnledIn(tt.history, tt.at); left != tt.left {
			t.Errorf("%+v, a log that ends at %s: it counts up to %s, not %s", tt.mark, tt.at, left, tt.left)
		}
	}
}

func TestMarksAreKept(t *testing.T) {
	dir := t.TempDir()
	m := Open(dir)
	if e, err := m.Promised(); e != 0 || err != nil {
		t.Errorf("%d, %v", e, err)
	}
	if err := m.ClearPromoting(); err != nil {
		t.Errorf("clear what is not there: %v", err)
	}
	c := Copy{Copy: "c", Epoch: 4, Seq: 9}
	p := Promotion{Epoch: 4, TLI: 3}
	for _, err := range []error{m.SetPromised(7), m.SetCopy(c), m.SetPromoting(p)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	m = Open(dir)
	if e, err := m.Promised(); e != 7 || err != nil {
		t.Errorf("%d, %v", e, err)
	}
	if got, err := m.Copy(); got != c || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := m.Promoting(); got != p || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if err := m.ClearPromoting(); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Promoting(); got != (Promotion{}) || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*"+durable.Suffix)); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A crash between the temporary file and the rename leaves the old mark. The content of the temporary file is
// overwritten.
func TestMarkSurvivesACrashBeforeTheRename(t *testing.T) {
	dir := t.TempDir()
	m := Open(dir)
	if err := m.SetPromised(7); err != nil {
		t.Fatal(err)
	}
	for _, half := range []string{`{"epoch":9}`, `{"ep`, ""} {
		if err := os.WriteFile(filepath.Join(dir, "promise.json"+durable.Suffix), []byte(half), 0o600); err != nil {
			t.Fatal(err)
		}
		if e, err := Open(dir).Promised(); e != 7 || err != nil {
			t.Errorf("%q: %d, %v", half, e, err)
		}
	}
	if err := m.SetPromised(8); err != nil {
		t.Fatal(err)
	}
	if e, err := m.Promised(); e != 8 || err != nil {
		t.Errorf("%d, %v", e, err)
	}
}

// A mark that cannot be read is not "no mark": nothing may be promised or followed on the strength of it.
func TestUnreadableMarkIsAnError(t *testing.T) {
	dir := t.TempDir()
	m := Open(dir)
	for _, bad := range []string{"", "{", `{"epoch":-1}`} {
		if err := os.WriteFile(filepath.Join(dir, "promise.json"), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if e, err := m.Promised(); err == nil {
			t.Errorf("%q read as %d", bad, e)
		}
	}
}

func TestMarkThatCannotBeWrittenLeavesTheOldOne(t *testing.T) {
	dir := t.TempDir()
	m := Open(dir)
	if err := m.SetPromised(7); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "promise.json"+durable.Suffix), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.SetPromised(8); err == nil {
		t.Error("no error")
	}
	if e, err := m.Promised(); e != 7 || err != nil {
		t.Errorf("%d, %v", e, err)
	}
}

// The mark of a quarantine that its disk does not take is kept beside, for the next agent, and removed from there too.
func TestQuarantineBesideADiskThatFails(t *testing.T) {
	dir, beside := t.TempDir(), t.TempDir()
	m := Open(dir).Beside(beside)
	blocks := filepath.Join(dir, "quarantine.json"+durable.Suffix)
	if err := os.Mkdir(blocks, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.SetCopy(Copy{Copy: "C"}); err != nil {
		t.Fatal(err)
	}
	want := Quarantine{Copy: "C", Why: "fsync: EIO"}
	if err := m.SetQuarantine(want); err == nil {
		t.Error("no error")
	}
	if q, err := Open(dir).Beside(beside).Quarantine(); q != want || err != nil {
		t.Errorf("%+v %v", q, err)
	}
	if q, err := Open(t.TempDir()).Beside(beside).Quarantine(); q != (Quarantine{}) || err != nil {
		t.Errorf("on another disk: %+v %v", q, err)
	}
	if err := os.Remove(blocks); err != nil {
		t.Fatal(err)
	}
	if err := m.SetQuarantine(want); err != nil {
		t.Fatal(err)
	}
	if q, err := Open(dir).Quarantine(); q != want || err != nil {
		t.Errorf("%+v %v", q, err)
	}
	if err := m.ClearQuarantine(); err != nil {
		t.Fatal(err)
	}
	if q, err := m.Quarantine(); q != (Quarantine{}) || err != nil {
		t.Errorf("%+v %v", q, err)
	}
}
