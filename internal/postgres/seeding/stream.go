package seeding

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// asked is a question under way on a data connection.
type asked struct {
	item  item
	off   int64
	want  int    // bytes of the chunk according to the list
	had   int    // of these, the bytes that the target has, or that were found elsewhere
	sums  []byte // the hashes of the pages that it had
	away  []byte // those bytes, if they are not in the target's own file yet
	round int    // of the chooser
	live  bool
}

// fetcher is one data connection of the target. It requests chunks, up to wire.Pipeline at a time, and stores the
// answers.
type fetcher struct {
	s     *seeder
	f     *wire.Conn
	slots [wire.Pipeline]asked
	sums  [wire.Pipeline][]byte
	spare [][]byte // room for chunks
	work  []byte   // decompressed data
	tags  []byte
	under int
	long  int             // size on the network of the last chunk that came whole
	own   stretch         // of the queue
	in    fileio.Reader   // for comparison
	out   fileio.LastOpen // for storing
}

// stream settles chunks over one connection until none remains, and closes it. Questions without an answer are put
// back.
func (s *seeder) stream(ctx context.Context, l line) error {
	stop := context.AfterFunc(ctx, l.end)
	defer stop()
	defer l.end()
	c := &fetcher{s: s, f: l.f, long: wire.ChunkSize, work: make([]byte, 0, wire.ChunkSize)}
	defer c.putBack()
	return errors.Join(c.run(ctx), c.close())
}

// run asks and stores until nothing remains to be asked.
func (c *fetcher) run(ctx context.Context) error {
	for {
		if err := c.ask(ctx); err != nil {
			return err
		}
		if c.under == 0 {
			return nil
		}
		asked := c.s.watch.Listens()
		kind, body, err := c.f.Read(wire.Silence)
		c.s.watch.OnNet(asked)
		if err != nil {
			return wire.UnexpectedEOF(err)
		}
		if kind == wire.FrameRefusal {
			return wire.DecodeRefusal(body)
		}
		a, err := wire.DecodeAnswer(kind, body)
		if err != nil {
			return err
		}
		if err := c.take(a); err != nil {
			return err
		}
	}
}

func (c *fetcher) close() error {
	if err := errors.Join(c.in.Close(), c.out.Close()); err != nil {
		return &localError{err}
	}
	return nil
}

func (c *fetcher) putBack() {
	var left []item
	for _, q := range c.slots {
		if q.live {
			c.s.choose.over(q.round)
			c.s.pace.GiveBack(q.want)
			left = append(left, q.item)
		}
	}
	c.s.queue.putBack(&c.own, left...)
}

// ask fills the free slots with questions.
func (c *fetcher) ask(ctx context.Context) error {
	for slot := range c.slots {
		if c.slots[slot].live {
			continue
		}
		if c.full() {
			break
		}
		if c.under == 0 {
			if err := c.s.pace.Wait(ctx, wire.ChunkSize); err != nil {
				return err
			}
		} else if c.s.pace.Take(wire.ChunkSize) > 0 { // the questions under way are answered first
			break
		}
		it, ok := c.s.queue.next(&c.own)
		if !ok {
			c.s.pace.GiveBack(wire.ChunkSize)
			break
		}
		if err := c.question(slot, it); err != nil {
			return err
		}
	}
	return nil
}

// full reports whether no more may be requested now, although slots are free.
func (c *fetcher) full() bool {
	lacking, holding := 0, 0
	for _, q := range c.slots {
		switch {
		case !q.live:
		case q.had == 0:
			lacking++
		case q.away != nil:
			holding++
		}
	}
	return lacking >= c.fillers() || holding >= wire.Holders
}

// fillers returns the number of missing chunks that may be requested at a time. Chunks that compress well are requested
// in large numbers, because otherwise the link waits for questions. Others are requested in small numbers, because
// otherwise a change of codec takes long to show.
func (c *fetcher) fillers() int {
	return max(wire.FillLeast, min(wire.FillWire/max(c.long, 1), wire.FillMost))
}

// question requests one chunk, with the hashes of its present contents. The source begins while the next chunk is read
// here.
func (c *fetcher) question(slot int, it item) error {
	f := c.s.files[it.file]
	off, n := f.Span(it.chunk)
	c.s.pace.GiveBack(wire.ChunkSize - n)
	k, round := c.s.choose.pick()
	q := &c.slots[slot]
	*q = asked{item: it, off: off, want: n, live: true, round: round}
	c.under++
	began := time.Now()
	room := c.room()
	have, err := c.local(f, off, room[:max(0, min(int64(n), c.s.had[it.file]-off))])
	if err == nil && pagesum.AllZero(have) { // nothing exists, or only room that an interrupted copy has reserved
		have = nil
		if c.s.from != nil {
			if have = c.s.from.read(f, off, room[:n]); len(have) > 0 {
				q.away = have
			}
		}
	}
	c.s.watch.OnDisk(began)
	if err != nil {
		return &localError{err}
	}
	m := wire.Question{Slot: uint8(slot), File: uint32(it.file), Chunk: uint32(it.chunk), Codec: k}
	if q.had = len(have); q.had > 0 {
		q.sums = c.s.hash.Sums(c.sums[slot][:0], have, c.s.info.Page)
		c.sums[slot], c.tags = q.sums, c.tags[:0]
		for at := 0; at < len(q.sums); at += pagesum.Size {
			c.tags = append(c.tags, q.sums[at:at+wire.TagSize]...)
		}
		m.Hash, m.Tags = pagesum.Sum(q.sums), c.tags
	}
	if q.away == nil {
		c.spare = append(c.spare, room)
	}
	return errors.Join(c.f.Write(wire.FrameChunk, m.Encode()), c.f.Flush())
}

// room returns room for a chunk.
func (c *fetcher) room() []byte {
	n := len(c.spare)
	if n == 0 {
		return make([]byte, wire.ChunkSize)
	}
	b := c.spare[n-1]
	c.spare = c.spare[:n-1]
	return b[:wire.ChunkSize]
}

// local reads the target's bytes of a chunk as of the beginning of the window: later there may be holes that are not
// written yet.
func (c *fetcher) local(f wire.File, off int64, buf []byte) ([]byte, error) {
	if len(buf) == 0 {
		return nil, nil
	}
	n, err := c.in.Read(fileio.Entry{Space: f.Space, Name: f.Name}, func(flags int) (*os.File, error) {
		return c.s.tree.Root(f.Space).OpenFile(f.Name, os.O_RDONLY|flags, 0)
	}, buf, off)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.Name, err)
	}
	return buf[:n], nil
}

// take stores an answer.
func (c *fetcher) take(a wire.Answer) error {
	q := &c.slots[a.Slot]
	if !q.live || int(a.Len) > q.want {
		return errors.New("an answer to nothing that was asked")
	}
	f := c.s.files[q.item.file]
	var err error
	same := 0 // bytes of it that were present
	switch a.Kind {
	case wire.FrameGone:
		c.s.lost(q.item.file)
	case wire.FrameSame:
		if int(a.Len) != q.had {
			return errors.New("the source says that different lengths are the same")
		}
		same = q.want
		if q.away != nil {
			err = c.store(tree.Chunk{File: f, Off: q.off, Data: q.away, Runs: [][2]int{{0, q.had}}})
		}
	case wire.FrameZero:
		err = c.zero(f, q, int(a.Len))
	case wire.FrameData:
		err = c.data(f, q, a)
	case wire.FramePatch:
		same, err = c.patch(f, q, a)
	default:
		return fmt.Errorf("a frame %q on a data connection", a.Kind)
	}
	if err != nil {
		return err
	}
	if int(a.Len) < q.want && a.Kind != wire.FrameGone {
		c.s.shorter(q.item.file, q.off+int64(a.Len))
	}
	c.s.watch.Settled(q.want, same)
	if a.Kind == wire.FrameData {
		c.long = len(a.Body)
		if c.s.choose.arrived(q.want, len(a.Body), q.round, time.Now()) {
			c.s.remember()
		}
	}
	c.s.choose.over(q.round)
	if q.away != nil {
		c.spare, q.away = append(c.spare, q.away), nil
	}
	q.live = false
	c.under--
	return nil
}

func (s *seeder) lost(i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone[i] = true
}

// remember keeps the chooser's result for the next attempt, best-effort.
func (s *seeder) remember() {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := tree.ReadUnfinished(s.o.StateDir)
	if err != nil {
		return
	}
	m.Codec = s.choose.lesson()
	_ = tree.WriteUnfinished(s.o.StateDir, m)
}

func (s *seeder) shorter(i int, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.cut[i]; !ok || size < old {
		s.cut[i] = size
	}
}

// zero makes n bytes zero: a hole, if they had content or reserved room.
func (c *fetcher) zero(f wire.File, q *asked, n int) error {
	empty := q.had == 0 || q.away != nil // bytes found elsewhere are not in this file, which holds only zeros there
	if n == 0 || empty && f.Size <= wire.ChunkSize {
		return nil
	}
	out, err := c.s.tree.OpenFile(&c.out, f, 0)
	if err != nil {
		return &localError{err}
	}
	err = unix.Fallocate(int(out.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, q.off, int64(n))
	if err != nil && empty {
		return nil
	}
	if err != nil {
		_, err = out.WriteAt(make([]byte, n), q.off)
	}
	if err != nil {
		return &localError{fmt.Errorf("empty a part of %s: %w", f.Name, err)}
	}
	return nil
}

// data stores a chunk that came whole.
func (c *fetcher) data(f wire.File, q *asked, a wire.Answer) error {
	b, err := a.Codec.Decompress(c.work[:0:wire.ChunkSize], a.Body, int(a.Len))
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	if pagesum.Guard(b) != a.Hash {
		return fmt.Errorf("a chunk of %s arrived with another hash than it was sent with", f.Name)
	}
	return c.store(tree.Chunk{File: f, Off: q.off, Data: b, Runs: [][2]int{{0, len(b)}}})
}

// patch puts the differing pages into the present contents, and accepts the result only if its hash is right. It
// returns the number of bytes that were right.
func (c *fetcher) patch(f wire.File, q *asked, a wire.Answer) (same int, err error) {
	size, n := c.s.info.Page, int(a.Len)
	count := (n + size - 1) / size
	if len(a.Pages) != (count+7)/8 {
		return 0, errors.New("a patch for another number of pages")
	}
	b := q.away
	if b == nil { // equal pages are not written either
		b = c.room()
		defer func() { c.spare = append(c.spare, b) }()
	}
	b = b[:wire.ChunkSize][:n]
	total := 0
	for i := range count {
		if a.Pages[i/8]&(1<<(i%8)) != 0 {
			total += min(size, n-i*size)
		} else if min((i+1)*size, n) > q.had {
			return 0, errors.New("a patch that leaves out what the target does not have")
		}
	}
	fresh, err := a.Codec.Decompress(c.work[:0:wire.ChunkSize], a.Body, total)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", f.Name, err)
	}
	var runs [][2]int
	var sums []byte
	for i := range count {
		from, to := i*size, min((i+1)*size, n)
		if a.Pages[i/8]&(1<<(i%8)) == 0 {
			sums = append(sums, q.sums[i*pagesum.Size:(i+1)*pagesum.Size]...)
			continue
		}
		copy(b[from:to], fresh)
		fresh = fresh[to-from:]
		sums = c.s.hash.Sums(sums, b[from:to], size)
		if k := len(runs); k > 0 && runs[k-1][1] == from {
			runs[k-1][1] = to
		} else {
			runs = append(runs, [2]int{from, to})
		}
	}
	if pagesum.Sum(sums) != a.Hash {
		return 0, fmt.Errorf("a chunk of %s does not have the source's hash after it was mended", f.Name)
	}
	if q.away != nil {
		runs = [][2]int{{0, n}}
	}
	return n - total, c.store(tree.Chunk{File: f, Off: q.off, Data: b, Runs: runs})
}

// store writes those parts of a chunk.
func (c *fetcher) store(part tree.Chunk) error {
	defer c.s.watch.OnDisk(time.Now())
	if err := c.s.tree.Store(&c.out, part); err != nil {
		return &localError{err}
	}
	return nil
}
