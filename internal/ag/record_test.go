package ag

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestProfilesAreSafe(t *testing.T) {
	for name, p := range Profiles {
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if p.Name != name {
			t.Errorf("profile %s calls itself %s", name, p.Name)
		}
	}
}

func TestValidateShowsTheArithmetic(t *testing.T) {
	p := Profile{Name: "eager", Lease: 5 * time.Second, Fence: time.Second, Observer: 6 * time.Second}
	err := p.Validate()
	if err == nil {
		t.Fatal("an observer that takes over before the lease has ended was accepted")
	}
	for _, want := range []string{`"eager"`, "5.941s", "6.051s", "raise O"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %s", err, want)
		}
	}
}

func TestParseLSN(t *testing.T) {
	for s, want := range map[string]LSN{"0/0": 0, "0/15C05B0": 0x15C05B0, "1/0": 1 << 32, "FFFFFFFF/FFFFFFFF": 1<<64 - 1, "a/b": 0xa0000000b} {
		got, err := ParseLSN(s)
		if err != nil || got != want {
			t.Errorf("ParseLSN(%q) = %v, %v, want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "/", "0", "0/", "/0", "0/100000000", "x/1", "-1/0", "0/0/0"} {
		if got, err := ParseLSN(s); err == nil {
			t.Errorf("ParseLSN(%q) = %v, want an error", s, got)
		}
	}
}

func FuzzParseLSN(f *testing.F) {
	for _, s := range []string{"0/0", "0/15C05B0", "FFFFFFFF/1", "1/", "0/0/0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ParseLSN(s)
		if err != nil {
			return
		}
		if again, err := ParseLSN(l.String()); err != nil || again != l {
			t.Fatalf("%q is %v, which reads back as %v, %v", s, l, again, err)
		}
	})
}

func TestPositionCompare(t *testing.T) {
	order := []Position{{}, {1, 5}, {1, 9}, {2, 1}, {3, 0}}
	for i, p := range order {
		for j, q := range order {
			if got := p.Compare(q); got != min(1, max(-1, i-j)) {
				t.Errorf("%s compared with %s = %d", p, q, got)
			}
		}
	}
}

func TestCloneSharesNothing(t *testing.T) {
	s := leading().Record.State
	c := s.Clone()
	c.V[0].ID, c.Timelines[0].TLI = "x", 9
	if s.V[0].ID != "b" || s.Timelines[0].TLI != 1 {
		t.Error("a clone shares memory with the original")
	}
}

func TestPick(t *testing.T) {
	all := []Target{{ID: "a", Healthy: true}, {ID: "b", Healthy: true, Readable: true}, {ID: "c", Healthy: true, Readable: true}, {ID: "d", Healthy: true, Readable: true}}
	without := func(ids ...ReplicaID) []Target {
		return slices.DeleteFunc(slices.Clone(all), func(t Target) bool { return slices.Contains(ids, t.ID) })
	}
	list := [][]ReplicaID{{"b", "c"}, {"d"}, {"a"}}
	for _, tt := range []struct {
		name     string
		routes   *Routes
		intent   Intent
		n        uint64
		want     ReplicaID
		fellBack bool
	}{
		{"nothing published yet", nil, ReadWrite, 0, "", false},
		{"writes go to the primary", &Routes{Primary: "a", WriteOpen: true, Targets: all}, ReadWrite, 3, "a", false},
		{"writes wait while the gate is shut", &Routes{Primary: "a", Targets: all}, ReadWrite, 0, "", false},
		{"writes wait while there is no primary", &Routes{WriteOpen: true, Targets: all}, ReadWrite, 0, "", false},
		{"reads take turns", &Routes{Primary: "a", WriteOpen: true, Targets: all, ReadList: list}, ReadOnly, 1, "c", false},
		{"and come round", &Routes{Primary: "a", WriteOpen: true, Targets: all, ReadList: list}, ReadOnly, 2, "b", false},
		{"the next set when the first is empty", &Routes{Primary: "a", WriteOpen: true, Targets: without("b", "c"), ReadList: list}, ReadOnly, 1, "d", false},
		{"the primary where it is listed", &Routes{Primary: "a", WriteOpen: true, Targets: without("b", "c", "d"), ReadList: list}, ReadOnly, 0, "a", true},
		{"not the primary where it is not listed", &Routes{Primary: "a", WriteOpen: true, Targets: without("b", "c"), ReadList: list[:1]}, ReadOnly, 0, "", false},
		{"the primary in turn where a set has it", &Routes{Primary: "a", WriteOpen: true, Targets: all, ReadList: [][]ReplicaID{{"b", "a"}}}, ReadOnly, 1, "a", true},
		{"the others of that set while the primary is shut", &Routes{Primary: "a", Targets: all, ReadList: [][]ReplicaID{{"b", "a"}}}, ReadOnly, 1, "b", false},
		{"not a primary that is shut", &Routes{Primary: "a", Targets: without("b", "c", "d"), ReadList: list}, ReadOnly, 0, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, fellBack, ok := tt.routes.Pick(tt.intent, tt.n)
			if ok != (tt.want != "") || ok && got.ID != tt.want || ok && fellBack != tt.fellBack {
				t.Errorf("Pick = %q, fell back %v, ok %v; want %q, %v", got.ID, fellBack, ok, tt.want, tt.fellBack)
			}
		})
	}
}

func TestReadList(t *testing.T) {
	g := Group{Replicas: []Replica{
		{ID: "a"}, {ID: "b"}, {ID: "c", Join: Detached}, {ID: "d"}, {ID: "w", AvailabilityMode: ConfigurationOnly},
	}}
	a := &g.Replicas[0].Options
	for _, tt := range []struct {
		name string
		set  func()
		want [][]ReplicaID
	}{
		{"all others, then the primary", func() {}, [][]ReplicaID{{"b", "d"}, {"a"}}},
		{"the primary's list", func() { a.RoutingList = [][]ReplicaID{{"d"}, {"a", "b"}} }, [][]ReplicaID{{"d"}, {"a", "b"}}},
		{"a primary that takes no readers", func() { a.PrimaryAllow = PrimaryAllowReadWrite }, [][]ReplicaID{{"d"}, {"b"}}},
		{"no routing and no readers", func() { a.RoutingNone = true }, [][]ReplicaID{nil}},
		{"no routing", func() { a.PrimaryAllow = PrimaryAllowAll }, [][]ReplicaID{{"a"}}},
	} {
		tt.set()
		if got := g.ReadList("a"); !slices.EqualFunc(got, tt.want, slices.Equal[[]ReplicaID]) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
	if got := g.ReadList("b"); len(got) != 2 || !slices.Equal(got[0], []ReplicaID{"a", "d"}) {
		t.Errorf("another primary has a list of its own: got %v", got)
	}
}

// Commits of an epoch are known to be kept as long as each later one was seen, and none was forced.
func TestLosslessSince(t *testing.T) {
	r := func(epoch, lossless Epoch) *Routes { return &Routes{Epoch: epoch, Lossless: lossless} }
	for _, c := range []struct {
		before *Routes
		e      EpochRecord
		want   Epoch
	}{
		{nil, EpochRecord{Epoch: 3}, 3},
		{r(3, 1), EpochRecord{Epoch: 3}, 1},
		{r(3, 1), EpochRecord{Epoch: 4}, 1},
		{r(3, 1), EpochRecord{Epoch: 5}, 5},
		{r(3, 1), EpochRecord{Epoch: 4, Forced: true}, 4},
		{r(4, 4), EpochRecord{Epoch: 4, Forced: true}, 4},
		{r(4, 4), EpochRecord{Epoch: 5}, 4},
		{r(4, 2), EpochRecord{Epoch: 2}, 2},
	} {
		if got := LosslessSince(c.before, c.e); got != c.want {
			t.Errorf("%+v after %+v: %d, want %d", c.e, c.before, got, c.want)
		}
	}
}
