package pgfiles

import (
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// walBuilder writes WAL as a server would, into segments of 1 MiB.
type walBuilder struct {
	t    *testing.T
	dir  string
	tli  ag.Timeline
	data []byte // from position 1 MiB (segment 1) on
	prev ag.LSN
	info byte // of the records that follow
}

var testControl = Control{WalSegmentSize: 1 << 20, WalBlockSize: 8192}

const testStart = ag.LSN(1<<20 + LongPageHeader)

// end is where the next byte goes.
func (b *walBuilder) end() ag.LSN { return 1<<20 + ag.LSN(len(b.data)) }

// header begins a page. remain counts the bytes of an unfinished record on it and behind it.
func (b *walBuilder) header(flags uint16, remain int) {
	size, at := shortPageHeader, b.end()
	if at%(1<<20) == 0 {
		size, flags = LongPageHeader, flags|pageLongHeader
	}
	if remain > 0 {
		flags |= pageFirstIsContRecord
	}
	h := make([]byte, size)
	binary.LittleEndian.PutUint16(h, 0xD110)
	binary.LittleEndian.PutUint16(h[2:], flags)
	binary.LittleEndian.PutUint32(h[4:], uint32(b.tli))
	binary.LittleEndian.PutUint64(h[8:], uint64(at))
	binary.LittleEndian.PutUint32(h[16:], uint32(remain))
	if size == LongPageHeader {
		binary.LittleEndian.PutUint32(h[32:], 1<<20)
		binary.LittleEndian.PutUint32(h[36:], 8192)
	}
	b.data = append(b.data, h...)
}

// record appends a record with n bytes of data; cut leaves that many bytes of it unwritten, as a crash does.
func (b *walBuilder) record(n, cut int, flags uint16) (start ag.LSN) {
	if b.end()%8192 == 0 {
		b.header(flags, 0)
	}
	start = b.end()
	rec := make([]byte, recordHeader+n)
	for k := range n {
		rec[recordHeader+k] = byte(k)
	}
	binary.LittleEndian.PutUint32(rec, uint32(len(rec)))
	binary.LittleEndian.PutUint64(rec[8:], uint64(b.prev))
	rec[16] = b.info
	crc := crc32.Update(crc32.Checksum(rec[recordHeader:], castagnoli), castagnoli, rec[:20])
	binary.LittleEndian.PutUint32(rec[20:], crc)
	for left := rec; len(left) > cut; {
		if b.end()%8192 == 0 {
			b.header(0, len(left))
		}
		k := min(len(left)-cut, int(8192-b.end()%8192))
		b.data = append(b.data, left[:k]...)
		left = left[k:]
	}
	if cut == 0 {
		b.data = append(b.data, make([]byte, (8-len(b.data)%8)%8)...)
		b.prev = start
	}
	return start
}

func (b *walBuilder) padPage() {
	b.data = append(b.data, make([]byte, (8192-len(b.data)%8192)%8192)...)
}

// write writes all segments out, each filled with zeros.
func (b *walBuilder) write() {
	for k := 0; k*(1<<20) < len(b.data); k++ {
		seg := make([]byte, 1<<20)
		copy(seg, b.data[k*(1<<20):])
		name := filepath.Join(b.dir, SegmentName(b.tli, ag.LSN(k+1), 1<<20))
		if err := os.WriteFile(name, seg, 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
}

func newWAL(t *testing.T) *walBuilder {
	b := &walBuilder{t: t, dir: t.TempDir(), tli: 1}
	return b
}

func (b *walBuilder) wantEnd(name string, want ag.LSN) {
	b.t.Helper()
	b.write()
	w := OpenWAL(b.dir, testControl, NewLineage(b.tli, nil))
	defer w.Close()
	end, found, err := End(b.t.Context(), w, testStart, MaxLSN)
	if err != nil || !found || end != (ag.Position{Timeline: b.tli, LSN: want}) {
		b.t.Errorf("%s: WAL ends at %s, found %v, %v; want %s", name, end, found, err, want)
	}
}

func TestWALEnd(t *testing.T) {
	t.Run("records of every length", func(t *testing.T) {
		b := newWAL(t)
		for n := range 3000 {
			b.record(n%2100, 0, 0)
		}
		b.wantEnd("3000 records", b.end())
	})
	t.Run("a record over segments", func(t *testing.T) {
		b := newWAL(t)
		b.record(10, 0, 0)
		b.record(3<<20, 0, 0)
		b.wantEnd("whole", b.end())
	})
	t.Run("torn", func(t *testing.T) {
		for _, cut := range []int{1, 30, 9000, 20000} {
			b := newWAL(t)
			b.record(500, 0, 0)
			want := b.end()
			b.record(20000, cut, 0)
			b.wantEnd("the last record lacks bytes", want)
		}
	})
	t.Run("damaged", func(t *testing.T) {
		b := newWAL(t)
		b.record(500, 0, 0)
		want := b.end()
		b.record(500, 0, 0)
		b.record(500, 0, 0)
		b.data[want-1<<20+100] ^= 1
		b.wantEnd("the CRC of the second record is wrong", want)
	})
	t.Run("recycled", func(t *testing.T) {
		b := newWAL(t)
		for b.end() < 1<<20+8192*3 {
			b.record(400, 0, 0)
		}
		old := len(b.data)
		b.data = b.data[:0]
		b.prev = 0
		b.record(400, 0, 0)
		b.record(350, 0, 0)
		want := b.end()
		b.prev = 8 // the next record has another predecessor
		b.record(100, 0, 0)
		b.data = append(b.data, make([]byte, old)...)
		b.wantEnd("what follows is of a former life", want)
	})
	t.Run("overwritten", func(t *testing.T) {
		b := newWAL(t)
		b.record(500, 0, 0)
		b.record(20000, 15000, 0)
		b.padPage()
		b.record(64, 0, pageFirstIsOverwriteContRecord)
		b.record(64, 0, 0)
		b.wantEnd("after a record that a crash cut short", b.end())
	})
	t.Run("a standby that received a part", func(t *testing.T) {
		b := newWAL(t)
		var ends []ag.LSN
		for n := range 400 {
			ends = append(ends, b.end())
			b.record(n*37%9000, 0, 0)
		}
		b.write() // behind the received records lie older ones: here the same
		w := OpenWAL(b.dir, testControl, NewLineage(1, nil))
		defer w.Close()
		for k := 0; k+9 < len(ends); k += 9 {
			replayed, received := ends[k], ends[k+8]+5
			if end, found, err := End(t.Context(), w, replayed, received); err != nil || !found || end.LSN != ends[k+8] {
				t.Fatalf("replayed %s, received %s: WAL ends at %s, %v, %v; want %s", replayed, received, end, found, err, ends[k+8])
			}
			if end, found, err := End(t.Context(), w, ends[k+8], received); err != nil || found {
				t.Fatalf("all whole records are replayed, and there is another: %s, %v", end, err)
			}
		}
	})
	t.Run("nothing", func(t *testing.T) {
		w := OpenWAL(t.TempDir(), testControl, NewLineage(1, nil))
		if end, found, err := End(t.Context(), w, testStart, MaxLSN); found || err != nil {
			t.Errorf("an empty directory: %s, %v, %v", end, found, err)
		}
	})
}

// FuzzWALEnd holds that reading ends, and does not panic, with any content of the files.
func FuzzWALEnd(f *testing.F) {
	b := &walBuilder{tli: 1}
	b.record(100, 0, 0)
	b.record(20000, 0, 0)
	f.Add(b.data)
	f.Add(b.data[:9000])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, SegmentName(1, 1, 1<<20)), data, 0o600); err != nil {
			t.Fatal(err)
		}
		w := OpenWAL(dir, testControl, NewLineage(1, nil))
		defer w.Close()
		end, found, err := End(t.Context(), w, testStart, MaxLSN)
		if err != nil || found && (end.LSN <= testStart || end.LSN > 2<<20) {
			t.Errorf("%s, %v, %v", end, found, err)
		}
	})
}

// TestHolds: a crash leaves the beginning of a record. The bytes of it that were received are held, and nothing beyond.
func TestHolds(t *testing.T) {
	holds := func(b *walBuilder, to ag.LSN) bool {
		t.Helper()
		b.write()
		w := OpenWAL(b.dir, testControl, NewLineage(b.tli, nil))
		defer w.Close()
		held, err := Holds(b.t.Context(), w, testStart, to)
		if err != nil {
			t.Error(err)
		}
		return held
	}
	for _, cut := range []int{9000, 15000, 19000} {
		b := newWAL(t)
		b.record(500, 0, 0)
		whole := b.end()
		b.record(20000, cut, 0)
		for _, to := range []ag.LSN{whole, whole + 8, whole + 100, b.end() - 8, b.end()} {
			if !holds(b, to) {
				t.Errorf("cut by %d: whole records end at %s, the files at %s, and %s is not held", cut, whole, b.end(), to)
			}
		}
		if to := b.end() + 64<<10; holds(b, to) {
			t.Errorf("cut by %d: the files end at %s, and %s is held", cut, b.end(), to)
		}
	}
	b := newWAL(t)
	b.record(500, 0, 0)
	whole := b.end()
	if b.data = append(b.data, make([]byte, 4096)...); holds(b, whole+64) {
		t.Error("what was never received is held")
	}
	b = newWAL(t)
	b.record(500, 0, 0)
	whole = b.end()
	b.prev = 8
	if b.record(500, 100, 0); holds(b, whole+200) {
		t.Error("what follows is of a former life, and is held")
	}
}

// A change of settings is found wherever it lies behind the start, and not before it. WAL that is not here is an error.
func TestSettingsChange(t *testing.T) {
	b := newWAL(t)
	b.record(100, 0, 0)
	before := b.record(100, 0, 0)
	for range 500 {
		b.record(5000, 0, 0)
	}
	b.info = 0x60
	b.record(28, 0, 0)
	b.info = 0
	behind := b.record(100, 0, 0)
	b.record(9000, 0, 0)
	b.write()
	for start, want := range map[ag.LSN]bool{testStart: true, before: true, behind: false} {
		w := OpenWAL(b.dir, testControl, NewLineage(1, nil))
		if got, err := SettingsChange(t.Context(), w, start); err != nil || got != want {
			t.Errorf("from %s: %v, %v", start, got, err)
		}
		w.Close()
	}
	w := OpenWAL(b.dir, testControl, NewLineage(1, nil))
	defer w.Close()
	if _, err := SettingsChange(t.Context(), w, 100<<20); err == nil {
		t.Error("WAL that is not here has no change")
	}
}
