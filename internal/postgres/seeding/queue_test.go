package seeding

import (
	"slices"
	"testing"

	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

func TestQueueHandsOutEveryChunkOnceTheBiggestFileFirst(t *testing.T) {
	t.Parallel()
	files := []wire.File{{Name: "small", Size: 5}, {Name: "dir", Dir: true}, {Name: "big", Size: 9*wire.ChunkSize + 1}, {Name: "none"}, {Name: "skipped", Size: 9}}
	q := newQueue(files, func(f wire.File) bool { return f.Name == "skipped" })
	var got []item
	var own stretch
	lost := false
	for it, ok := q.next(&own); ok; it, ok = q.next(&own) {
		got = append(got, it)
		if len(got) == 2 && !lost { // lost with its connection
			lost = true
			q.putBack(&own, it)
			got = got[:1]
		}
	}
	// Lost chunks come first, the rest of the stretch after them. The small file is half way when the big one is.
	want := []item{{2, 0}, {2, 1}, {2, 3}, {2, 2}, {0, 0}, {2, 4}, {2, 5}, {2, 6}, {2, 7}, {2, 8}, {2, 9}}
	if !slices.Equal(got, want) {
		t.Errorf("handed out %v, want %v", got, want)
	}
}

// TestEveryKindAdvancesInProportion holds that tables, indexes and small files of either kind advance in proportion to
// all bytes. Some of the connections are slow. So a copy that was killed half way has about half of all network traffic
// behind it.
func TestEveryKindAdvancesInProportion(t *testing.T) {
	t.Parallel()
	files := []wire.File{
		{Name: "table", Size: 1024 * wire.ChunkSize},
		{Name: "table", Size: 700*wire.ChunkSize + 8192},
		{Name: "index", Size: 290 * wire.ChunkSize},
		{Name: "index", Size: 40*wire.ChunkSize + 8192},
		{Name: "table", Size: 90 * wire.ChunkSize},
	}
	for i := range 200 {
		files = append(files, wire.File{Name: "small table", Size: int64(8192 * (1 + i))}, wire.File{Name: "small index", Size: int64(8192 * (1 + i/2))})
	}
	total, all := map[string]int64{}, int64(0)
	for _, f := range files {
		total[f.Name] += f.Size
		all += f.Size
	}
	q := newQueue(files, func(wire.File) bool { return false })
	var own [4]stretch
	done, came := map[string]int64{}, int64(0)
	for turn := 0; ; turn++ {
		it, ok := q.next(&own[[]int{0, 1, 0, 2, 0, 1, 3}[turn%7]])
		if !ok {
			break
		}
		_, n := files[it.file].Span(it.chunk)
		done[files[it.file].Name] += int64(n)
		came += int64(n)
		part := float64(came) / float64(all)
		for kind, of := range total {
			if its := float64(done[kind]) / float64(of); part > 0.1 && (its < part-0.05 || its > part+0.05) {
				t.Fatalf("of %.1f %% of all, %.1f %% of what is of kind %s", 100*part, 100*its, kind)
			}
		}
	}
	if came != all {
		t.Errorf("handed out %d bytes of %d", came, all)
	}
}
