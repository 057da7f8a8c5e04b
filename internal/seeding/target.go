package seeding

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/klauspost/compress/s2"
)

// How a lost connection is opened again.
const (
	retryFirst = 50 * time.Millisecond
	retryMost  = 3 * time.Second
	pingEvery  = 5 * time.Second
	dialLimit  = 15 * time.Second
	// sourceGone is how long a secondary may fail as a source until the attempt is given up: unlike a primary, nobody replaces it.
	sourceGone = 30 * time.Second
)

// seeder is one Run.
type seeder struct {
	o      Options
	watch  *watcher
	choose *chooser
	pace   *pacer

	info  windowInfo // of the window under way
	hash  pageHash   // of its pages
	files []file
	tree  *tree
	from  *starting // where else to look; nil: nowhere
	fresh bool      // nothing of an older copy was there
	had   []int64   // how long each file was here when the window began
	queue *queue

	mu   sync.Mutex
	cut  map[int]int64 // files that are shorter at the source than its list says
	gone map[int]bool  // files that the source does not have any more

	ctl    *control
	anchor *control // to the primary, where the source is a secondary; else nil
}

func (s *seeder) close() {
	for _, c := range []*control{s.ctl, s.anchor} {
		if c != nil {
			c.close()
		}
	}
	if s.tree != nil {
		s.tree.close()
	}
	if s.from != nil {
		s.from.close()
	}
}

// round fills the target within one backup window: everything is compared or received, then the window is ended.
func (s *seeder) round(ctx context.Context) (ending, []byte, error) {
	for _, c := range []*control{s.ctl, s.anchor} {
		if c != nil {
			c.close()
		}
	}
	if err := s.attach(ctx); err != nil {
		return ending{}, nil, err
	}
	if err := s.prepare(); err != nil {
		return ending{}, nil, err
	}
	if err := s.transfer(ctx); err != nil {
		return ending{}, nil, err
	}
	s.watch.enter(PhaseFinish)
	// pg_control comes last of all files, then the backup ends.
	b, err := s.ctl.ask(ctx, frameControl, nil)
	if err != nil {
		return ending{}, nil, fmt.Errorf("fetch pg_control: %w", err)
	}
	e, err := s.ctl.ending(ctx)
	if err != nil {
		return ending{}, nil, fmt.Errorf("end the backup: %w", err)
	}
	if e.End < s.info.Start || len(e.Label) == 0 {
		return ending{}, nil, fmt.Errorf("the backup ended at %s, before its start %s, or without a label", e.End, s.info.Start)
	}
	if s.anchor != nil && e.Again == "" { // a secondary knows of no creation that is not committed
		kept, err := s.anchor.ending(ctx)
		if err != nil {
			return ending{}, nil, fmt.Errorf("ask the primary what databases there are: %w", err)
		}
		e.Again = kept.Again
	}
	return e, b, nil
}

// prepare makes the target the shape of the list.
func (s *seeder) prepare() error {
	s.watch.enter(PhasePrepare)
	if err := checkList(s.files); err != nil {
		return err
	}
	if s.info.Page < 1024 || s.info.Page > 32<<10 || s.info.Page&(s.info.Page-1) != 0 {
		return fmt.Errorf("the source has pages of %d bytes", s.info.Page)
	}
	if err := checkOldCopy(s.o.Target, s.info.SystemID, s.info.Major); err != nil {
		return err
	}
	places, err := mapTablespaces(s.o, s.info.Spaces)
	if err != nil {
		return err
	}
	if s.o.From != "" && s.from == nil {
		if s.from, err = openStarting(s.o.From, s.info); err != nil {
			return err
		}
	}
	if s.fresh, err = prepare(s.o.Target, s.o.StateDir, places, s.info.Major); err != nil {
		return err
	}
	if s.tree != nil {
		s.tree.close()
	}
	if s.tree, err = openTree(s.o.Target, places, s.info.Major); err != nil {
		return err
	}
	if s.had, err = s.tree.shape(s.files, !s.fresh); err != nil {
		return fmt.Errorf("make the directories: %w", err)
	}
	total, need := int64(0), map[string]int64{}
	for i, f := range s.files {
		total += f.Size
		need[s.tree.place(f.Space)] += f.Size - s.had[i]
	}
	for dir, n := range need {
		if err := checkRoom(dir, n); err != nil {
			return err
		}
	}
	if err := s.tree.reserve(s.files, s.had); err != nil {
		return err
	}
	s.cut, s.gone = map[int]int64{}, map[int]bool{}
	s.queue = newQueue(s.files, func(f file) bool { return s.tree.stays(f.Space, f.Name, !s.fresh) })
	s.watch.start(total, len(s.files))
	return nil
}

// transfer runs the data connections until nothing is left to ask for.
func (s *seeder) transfer(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for range s.streams() {
		all.Go(func() {
			if err := s.patiently(ctx, func() error { return s.stream(ctx) }); err != nil {
				cancel(err)
			}
		})
	}
	var alive sync.WaitGroup
	quit := make(chan struct{})
	for _, c := range []*control{s.ctl, s.anchor} {
		if c != nil {
			alive.Go(func() {
				if err := c.keepAlive(ctx, quit); err != nil {
					cancel(err)
				}
			})
		}
	}
	all.Wait()
	close(quit)
	alive.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return nil
}

func (s *seeder) streams() int {
	if s.o.Streams > 0 {
		return min(s.o.Streams, maxStreams)
	}
	const each = 32 << 20
	total := s.watch.snapshot().Total
	return int(min(4, 1+total/each))
}

// patiently runs f again, with growing pauses, while it fails by a connection and not by a refusal.
func (s *seeder) patiently(ctx context.Context, f func() error) error {
	pause, good := retryFirst, time.Now()
	for {
		began, done := time.Now(), s.watch.done()
		err := f()
		var r *RefusedError
		var local *localError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &local):
			return err
		case errors.As(err, &r) && r.Code != codeBusy:
			return err
		}
		if s.watch.done() != done {
			good = time.Now()
		}
		if s.o.Anchor != nil && r == nil && time.Since(good) > sourceGone {
			return fmt.Errorf("the source has not answered for %v: %w", sourceGone, err)
		}
		if r != nil { // the source is busy with others, which it says
			s.watch.lost(r.Message)
		} else {
			s.watch.cut(err.Error())
		}
		if time.Since(began) > retryMost || s.watch.done() != done { // it served for a while
			pause = retryFirst
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		case <-t.C:
		}
		pause = min(2*pause, retryMost)
	}
}

// localError is a failure of this node, which no other connection mends.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// dial opens a connection to the source, or to another by way of how, and says hello.
func (s *seeder) dial(ctx context.Context, how func(context.Context) (net.Conn, error), h hello) (*framed, windowInfo, func(), error) {
	h.Version, h.Member, h.Epoch, h.Spread, h.Corrupt = protocolVersion, s.o.Member, s.o.Epoch, s.o.Spread, s.o.Corrupt
	var info windowInfo
	dctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	conn, err := how(dctx)
	if err != nil {
		return nil, info, nil, fmt.Errorf("connect to the source: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	end := func() { stop(); _ = conn.Close() }
	f := newFramed(conn)
	f.count = s.watch.wire
	if err := f.writeJSON(frameHello, h); err != nil {
		end()
		return nil, info, nil, err
	}
	limit := silence
	if h.Window == "" {
		limit = windowTimeout
	}
	deadline := time.Now().Add(limit)
	for {
		kind, body, err := f.read(silence)
		switch {
		case err != nil:
		case kind == framePing && time.Now().Before(deadline): // a checkpoint takes its time
			s.watch.found()
			continue
		case kind == frameRefusal:
			err = refused(body)
		case kind != frameWindow:
			err = fmt.Errorf("a frame %q in place of a window", kind)
		default:
			err = json.Unmarshal(body, &info)
		}
		if err != nil {
			end()
			return nil, info, nil, err
		}
		s.watch.found()
		return f, info, end, nil
	}
}

// control is the connection about the whole, to the source or to the primary beside it; it is opened again when it is lost.
type control struct {
	s    *seeder
	how  func(context.Context) (net.Conn, error)
	h    hello // with which it began
	info windowInfo

	mu  sync.Mutex
	f   *framed
	end func()
}

func (c *control) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop()
}

func (c *control) drop() {
	if c.end != nil {
		c.end()
	}
	c.f, c.end = nil, nil
}

// attach opens a window at the source; where that is a secondary, the primary is first made to keep the WAL.
func (s *seeder) attach(ctx context.Context) error {
	h := hello{}
	if s.o.Anchor != nil {
		s.anchor = &control{s: s, how: s.o.Anchor, h: hello{Anchor: true}}
		if _, err := s.anchor.attach(ctx); err != nil {
			return fmt.Errorf("have the primary keep WAL: %w", err)
		}
		if h.After = s.anchor.info.Anchor; h.After == nil {
			return errors.New("the primary does not say from where on it keeps WAL; run the same version of coterie on both")
		}
		h.SystemID = s.anchor.info.SystemID
	}
	s.ctl = &control{s: s, how: s.o.Dial, h: h}
	var err error
	s.files, err = s.ctl.attach(ctx)
	if s.info = s.ctl.info; err == nil {
		s.hash, err = newPageHash(s.info.Key)
	}
	return err
}

// attach opens a window and returns the files in it.
func (c *control) attach(ctx context.Context) (files []file, err error) {
	err = c.s.patiently(ctx, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		f, info, end, err := c.s.dial(ctx, c.how, c.h)
		if err != nil {
			return err
		}
		if files, err = receiveList(f); err != nil {
			end()
			return err
		}
		c.f, c.end, c.info = f, end, info
		return nil
	})
	return files, err
}

func receiveList(f *framed) ([]file, error) {
	var files []file
	for {
		kind, body, err := f.read(silence)
		switch {
		case err != nil:
			return nil, err
		case kind == frameListed:
			return files, nil
		case kind == frameRefusal:
			return nil, refused(body)
		case kind != frameFiles:
			return nil, fmt.Errorf("a frame %q in the list of files", kind)
		}
		const most = 16 << 20
		if n, err := s2.DecodedLen(body); err != nil || n > most {
			return nil, fmt.Errorf("a part of the list of files of %d bytes", n)
		}
		text, err := s2.Decode(nil, body)
		if err != nil {
			return nil, fmt.Errorf("unpack the list of files: %w", err)
		}
		var part []file
		if err := json.Unmarshal(text, &part); err != nil {
			return nil, fmt.Errorf("read the list of files: %w", err)
		}
		if files = append(files, part...); len(files) > maxList {
			return nil, fmt.Errorf("the source lists more than %d files", maxList)
		}
	}
}

// ask sends a question and returns the body of its answer, over another connection if this one is lost.
func (c *control) ask(ctx context.Context, kind byte, question []byte) (answer []byte, err error) {
	err = c.s.patiently(ctx, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.f == nil {
			h := c.h
			h.Window, h.Listed = c.info.ID, true
			f, info, end, err := c.s.dial(ctx, c.how, h)
			if err != nil {
				return err
			}
			c.f, c.end = f, end
			if info.ID != c.info.ID {
				c.drop()
				return &RefusedError{codeGone, "the backup window has ended"}
			}
		}
		answer, err = c.once(kind, question)
		if err != nil {
			c.drop()
		}
		return err
	})
	return answer, err
}

// ending asks for the end of the window.
func (c *control) ending(ctx context.Context) (e ending, err error) {
	body, err := c.ask(ctx, frameEnd, nil)
	if err == nil {
		err = json.Unmarshal(body, &e)
	}
	return e, err
}

func (c *control) once(kind byte, question []byte) ([]byte, error) {
	if err := errors.Join(c.f.write(kind, question), c.f.flush()); err != nil {
		return nil, err
	}
	got, body, err := c.f.read(controlBudget)
	switch {
	case err != nil:
		return nil, noEOF(err)
	case got == frameRefusal:
		return nil, refused(body)
	case got != kind:
		return nil, fmt.Errorf("a frame %q where %q was expected", got, kind)
	}
	return append([]byte{}, body...), nil
}

// keepAlive tells the source now and then that somebody is there, until quit is closed.
func (c *control) keepAlive(ctx context.Context, quit <-chan struct{}) error {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-quit:
			return nil
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if _, err := c.ask(ctx, framePing, nil); err != nil {
			return err
		}
	}
}

// farewell tells the source, and the primary, that the window has served. They find out by themselves, later, if this is lost.
func (s *seeder) farewell(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, _ = s.ctl.ask(ctx, frameDone, nil)
	if s.anchor != nil {
		_, _ = s.anchor.ask(ctx, frameDone, nil)
	}
}

// mapTablespaces asks where each tablespace of the source goes and refuses places that cannot be.
func mapTablespaces(o Options, spaces []space) (map[uint32]string, error) {
	places := map[uint32]string{}
	used := map[string]uint32{}
	for _, t := range spaces {
		if !filepath.IsAbs(t.Location) || t.OID == 0 {
			return nil, fmt.Errorf("tablespace %d lies inside the source's data directory (%s), which is not supported", t.OID, t.Location)
		}
		if o.TablespaceMap == nil {
			return nil, fmt.Errorf("the source has tablespace %d at %s; say where it goes on this node", t.OID, t.Location)
		}
		place, err := o.TablespaceMap(t.OID, t.Location)
		if err != nil {
			return nil, fmt.Errorf("tablespace %d at %s: %w", t.OID, t.Location, err)
		}
		place = filepath.Clean(place)
		if !filepath.IsAbs(place) || within(place, o.Target) || within(o.Target, place) {
			return nil, fmt.Errorf("tablespace %d cannot go to %s: an absolute path apart from the data directory is needed", t.OID, place)
		}
		if t.isAt(place) {
			return nil, fmt.Errorf("tablespace %d would go to %s, where the source has its own: both nodes run on one machine; map it to another place", t.OID, place)
		}
		if other, twice := used[place]; twice {
			return nil, fmt.Errorf("tablespaces %d and %d cannot both go to %s", other, t.OID, place)
		}
		used[place] = t.OID
		places[t.OID] = place
	}
	return places, nil
}

// within reports whether path is dir or lies below it.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && (rel == "." || filepath.IsLocal(rel))
}
