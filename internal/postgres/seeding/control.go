package seeding

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// control is the connection for the whole copy, to the source or to the primary beside it. It is opened again when it
// is lost.
type control struct {
	s    *seeder
	how  func(context.Context) (net.Conn, error)
	h    wire.Hello // the hello that it began with
	info wire.Window

	mu  sync.Mutex
	f   *wire.Conn
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

// attach opens a window at the source. If the source is a secondary, it first makes the primary keep the WAL.
func (s *seeder) attach(ctx context.Context) error {
	h := wire.Hello{}
	if s.o.Anchor != nil {
		s.anchor = &control{s: s, how: s.o.Anchor, h: wire.Hello{Anchor: true}}
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
		s.hash, err = pagesum.NewHash(s.info.Key)
	}
	return err
}

// attach opens a window and returns the files in it.
func (c *control) attach(ctx context.Context) (files []wire.File, err error) {
	err = c.s.retryLost(ctx, func() error {
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

// receiveList receives the list of files. Its size is bounded, and every part of it brings files.
func receiveList(f *wire.Conn) ([]wire.File, error) {
	var files []wire.File
	for left := wire.MaxListBytes; ; {
		kind, body, err := f.Read(wire.Silence)
		switch {
		case err != nil:
			return nil, err
		case kind == wire.FrameListed:
			return files, nil
		case kind == wire.FrameRefusal:
			return nil, wire.DecodeRefusal(body)
		case kind != wire.FrameFiles:
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
		var part []wire.File
		if err := json.Unmarshal(text, &part); err != nil {
			return nil, fmt.Errorf("read the list of files: %w", err)
		}
		if left -= len(text); left < 0 || len(part) == 0 || slices.ContainsFunc(part, func(f wire.File) bool { return len(f.Name) > wire.MaxName }) {
			return nil, fmt.Errorf("the source's list of files has an empty part, a name of more than %d bytes, or more than %d MiB", wire.MaxName, wire.MaxListBytes>>20)
		}
		if files = append(files, part...); len(files) > wire.MaxList {
			return nil, fmt.Errorf("the source lists more than %d files", wire.MaxList)
		}
	}
}

// ask sends a question and returns the body of its answer, over a new connection if the old one is lost.
func (c *control) ask(ctx context.Context, kind byte, question []byte) (answer []byte, err error) {
	err = c.s.retryLost(ctx, func() error {
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
				return wire.Refuse(wire.CodeGone, "the backup window has ended")
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

// ending requests the end of the window.
func (c *control) ending(ctx context.Context) (e wire.Ending, err error) {
	body, err := c.ask(ctx, wire.FrameEnd, nil)
	if err == nil {
		err = json.Unmarshal(body, &e)
	}
	return e, err
}

func (c *control) once(kind byte, question []byte) ([]byte, error) {
	if err := errors.Join(c.f.Write(kind, question), c.f.Flush()); err != nil {
		return nil, err
	}
	got, body, err := c.f.Read(wire.ControlBudget)
	switch {
	case err != nil:
		return nil, wire.UnexpectedEOF(err)
	case got == wire.FrameRefusal:
		return nil, wire.DecodeRefusal(body)
	case got != kind:
		return nil, fmt.Errorf("a frame %q where %q was expected", got, kind)
	}
	return append([]byte{}, body...), nil
}

// keepAlive sends pings to the source until quit is closed.
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
		if _, err := c.ask(ctx, wire.FramePing, nil); err != nil {
			return err
		}
	}
}

// reportInstalled reports to the source and the primary that the copy is installed. It is best-effort: if the report is
// lost they find out later.
func (s *seeder) reportInstalled() {
	for _, c := range []*control{s.ctl, s.anchor} {
		if c != nil {
			c.tell(wire.FrameDone)
		}
	}
}

// tell sends a frame without an answer, if a connection exists.
func (c *control) tell(kind byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.f == nil {
		return
	}
	if err := errors.Join(c.f.Write(kind), c.f.Flush()); err != nil {
		c.drop()
	}
}
