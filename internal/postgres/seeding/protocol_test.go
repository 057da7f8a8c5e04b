package seeding

import (
	"bytes"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestQuestionAndAnswerKeepTheirFields(t *testing.T) {
	t.Parallel()
	q := chunkQuestion{Slot: 3, File: 70_000, Chunk: 9, Codec: codec{codecZstd, 2}, Hash: sum([]byte("x")), Tags: []byte("12345678abcdefgh")}
	if got, err := decodeQuestion(q.encode()); err != nil || !reflect.DeepEqual(got, q) {
		t.Errorf("%+v became %+v (%v)", q, got, err)
	}
	a := answer{Kind: framePatch, Slot: 1, Len: chunkSize, Hash: sum(nil), Codec: codecMinLZ, Pages: []byte{1, 2, 3}, Body: []byte("body")}
	got, err := decodeAnswer(framePatch, append(a.head(), a.Body...))
	if err != nil || got.Len != a.Len || got.Hash != a.Hash || got.Codec != a.Codec || !bytes.Equal(got.Pages, a.Pages) || string(got.Body) != "body" || got.Slot != 1 {
		t.Errorf("%+v became %+v (%v)", a, got, err)
	}
}

// FuzzFrames: no bytes from the other side, whatever they say, make a reader take more than a frame or leave its arrays.
func FuzzFrames(f *testing.F) {
	q := chunkQuestion{Slot: 1, Codec: codec{codecMinLZ, 0}}
	f.Add(q.encode())
	f.Add(append(answer{Len: 5, Pages: []byte{3}}.head(), "body"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, err := decodeQuestion(b); err == nil && (q.Slot >= pipeline || q.Codec.check() != nil) {
			t.Errorf("taken: %+v", q)
		}
		if a, err := decodeAnswer(frameData, b); err == nil && (a.Slot >= pipeline || a.Len > chunkSize) {
			t.Errorf("taken: %+v", a)
		}
	})
}

func TestFramesAreBounded(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() { _, _ = a.Write([]byte{'D', 0xff, 0xff, 0xff, 0xff}) }()
	if _, _, err := newFramed(b).read(5 * time.Second); err == nil || !strings.Contains(err.Error(), "frame of 4294967295 bytes") {
		t.Errorf("error %v", err)
	}
}

func TestListsThatLeadElsewhere(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string][]file{
		"outside":        {{Name: "../x"}},
		"absolute":       {{Name: "/etc/passwd"}},
		"not clean":      {{Name: "base/../x"}},
		"negative":       {{Name: "base/1", Size: -1}},
		"huge":           {{Name: "base/1", Size: 1 << 60}},
		"twice":          {{Name: "base/1"}, {Name: "base/1"}},
		"pg_control":     {{Name: controlName, Size: 8192}},
		"postmaster.pid": {{Name: "postmaster.pid"}},
		"ours":           {{Name: "coterie.copy"}},
		"WAL":            {{Name: "pg_wal/000000010000000000000001"}},
		"slots":          {{Name: "pg_replslot/x", Dir: true}},
	} {
		if err := checkList(bad); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if err := checkList([]file{{Name: "base", Dir: true}, {Name: "base/1", Size: 5}, {Name: "pg_wal", Dir: true}, {Space: 5, Name: "PG_15_1/5", Dir: true}}); err != nil {
		t.Error(err)
	}
}

func TestQueueHandsOutEveryChunkOnceTheBiggestFileFirst(t *testing.T) {
	t.Parallel()
	files := []file{{Name: "small", Size: 5}, {Name: "dir", Dir: true}, {Name: "big", Size: 9*chunkSize + 1}, {Name: "none"}, {Name: "skipped", Size: 9}}
	q := newQueue(files, func(f file) bool { return f.Name == "skipped" })
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
	// What was lost comes first, the rest of the stretch after it. The small file is half way when the big one is.
	want := []item{{2, 0}, {2, 1}, {2, 3}, {2, 2}, {0, 0}, {2, 4}, {2, 5}, {2, 6}, {2, 7}, {2, 8}, {2, 9}}
	if !slices.Equal(got, want) {
		t.Errorf("handed out %v, want %v", got, want)
	}
}

// TestEveryKindAdvancesInProportion: whatever part of the bytes was handed out, to connections of which some are slow, about that part of the
// tables was, and of the indexes, and of the small files of either kind. So a copy that was killed half way has half of what is on the wire.
func TestEveryKindAdvancesInProportion(t *testing.T) {
	t.Parallel()
	files := []file{
		{Name: "table", Size: 1024 * chunkSize},
		{Name: "table", Size: 700*chunkSize + 8192},
		{Name: "index", Size: 290 * chunkSize},
		{Name: "index", Size: 40*chunkSize + 8192},
		{Name: "table", Size: 90 * chunkSize},
	}
	for i := range 200 {
		files = append(files, file{Name: "small table", Size: int64(8192 * (1 + i))}, file{Name: "small index", Size: int64(8192 * (1 + i/2))})
	}
	total, all := map[string]int64{}, int64(0)
	for _, f := range files {
		total[f.Name] += f.Size
		all += f.Size
	}
	q := newQueue(files, func(file) bool { return false })
	var own [4]stretch
	done, came := map[string]int64{}, int64(0)
	for turn := 0; ; turn++ {
		it, ok := q.next(&own[[]int{0, 1, 0, 2, 0, 1, 3}[turn%7]])
		if !ok {
			break
		}
		_, n := files[it.file].span(it.chunk)
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

func TestPacerFollowsARateThatChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rate := int64(1 << 20)
		p := &pacer{rate: func() int64 { return rate }}
		began := time.Now()
		for range 5 {
			if err := p.wait(t.Context(), 2<<20); err != nil {
				t.Fatal(err)
			}
			p.giveBack(1 << 20)
		}
		if took := time.Since(began); took < 3900*time.Millisecond || took > 4500*time.Millisecond {
			t.Errorf("5 MiB at 1 MiB/s took %v", took)
		}
		p.giveBack(-100 << 20)
		if wait := p.take(1); wait < 90*time.Second {
			t.Errorf("100 MiB are paid for in %v", wait)
		}
		rate = 100 << 20
		began = time.Now()
		if err := p.wait(t.Context(), 1); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("a limit that was raised held on for %v (%v)", time.Since(began), err)
		}
		rate = 1 << 10
		p.giveBack(-100 << 20)
		go func() { time.Sleep(time.Second); rate = 0 }()
		began = time.Now()
		if err := p.wait(t.Context(), 1); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("a limit that was taken away held on for %v (%v)", time.Since(began), err)
		}
	})
}

func TestRelationFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		space   uint32
		name    string
		segment uint32
		ok      bool
	}{
		{0, "base/5/16384", 0, true},
		{0, "base/5/16384.3", 3, true},
		{0, "base/5/16384_fsm", 0, true},
		{0, "base/5/16384_vm.1", 1, true},
		{0, "global/1262", 0, true},
		{7, "PG_15_2022/5/16384", 0, true},
		{0, "base/5/pg_filenode.map", 0, false},
		{0, "base/5/PG_VERSION", 0, false},
		{0, "pg_xact/0000", 0, false},
		{0, "base/5/16384_other", 0, false},
		{0, "base/5/16384.x", 0, false},
		{0, "postgresql.conf", 0, false},
	} {
		if segment, ok := relationFile(c.space, c.name); ok != c.ok || segment != c.segment {
			t.Errorf("%s: segment %d, %v", c.name, segment, ok)
		}
	}
}
