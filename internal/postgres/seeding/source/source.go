package source

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/klauspost/compress/s2"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// Bounds of the source.
const (
	maxWindows   = 4                // seedings at a time, however small
	heavyBytes   = 256 << 20        // of files, from which on a copy is heavy
	windowIdle   = 10 * time.Minute // a window without connections is closed after this
	slotLinger   = 10 * time.Minute // how long the slot waits for the finished copy to stream
	windowPatrol = 2 * time.Second  // the interval between two looks at the windows
	listPart     = 2000             // files per frame of the list
	creationWait = time.Minute      // for databases that are being created, within wire.ControlBudget
)

// Config is what a Source needs. Functions are called from many goroutines.
type Config struct {
	Data string // the data directory
	// Connect opens a session of the superuser on this node's server, without time limits.
	Connect func(context.Context) (*pgx.Conn, error)
	// Leads returns the epoch in which this node is the primary.
	Leads func() (ag.Epoch, bool)
	// Follows returns the epoch in which this node is a healthy secondary. Copies may be made of it while the primary
	// keeps the WAL. nil means that it never is one.
	Follows func() (ag.Epoch, bool)
	// MaxWAL returns the number of bytes of WAL that a window may make the server keep. nil or 0 means half of the free
	// space of the file system of WAL at the time.
	MaxWAL func() int64
	// AtOnce is the number of heavy copies that are made of this node at a time; others wait for their turn. 0 means
	// one.
	AtOnce int
	// CreationWait is the time that a window waits for a database that is being created; 0 means a minute.
	CreationWait time.Duration
	Logger       *slog.Logger
}

// Source serves copies of this node's server to other members. Its windows outlive connections and end with the role.
type Source struct {
	cfg Config
	log *slog.Logger
	at  atomic.Pointer[string] // the data directory

	mu      sync.Mutex
	left    bool // the slot of a window may be left behind
	windows map[string]*window
	opening map[ag.ReplicaID]bool // whether a copy is to be made from here
}

// New makes a Source. Run must be running while connections are served.
func New(c Config) *Source {
	log := c.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Source{cfg: c, log: log, windows: map[string]*window{}, opening: map[ag.ReplicaID]bool{}}
	s.MoveTo(c.Data)
	return s
}

// MoveTo has copies made of another data directory from now on. No window may be open.
func (s *Source) MoveTo(data string) { s.at.Store(&data) }

func (s *Source) data() string { return *s.at.Load() }

// Run watches the windows until ctx is done, and then ends them all.
func (s *Source) Run(ctx context.Context) error {
	swept := ag.Epoch(0)
	for {
		select {
		case <-ctx.Done():
			s.closeAll("the agent stops", func(*window) bool { return true })
			return nil
		case <-time.After(boottime.UntilNext(windowPatrol)):
		}
		e, leads := s.cfg.Leads()
		followed, follows := s.follows()
		s.closeAll("this node is not the primary any more", func(w *window) bool { return !w.standby && (!leads || w.epoch != e) })
		s.closeAll("this node does not follow the primary any more", func(w *window) bool { return w.standby && (!follows || w.epoch != followed) })
		if follows {
			e = followed
		}
		if (leads || follows) && (s.leftOver() || swept != e) && s.sweep(ctx) == nil {
			swept = e
		}
		s.patrol(ctx)
	}
}

// patrol closes windows that are unused, whose copy streams, or that keep too much WAL.
func (s *Source) patrol(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, w := range s.all() {
		w.mu.Lock()
		users, idle, done, ended := w.users, time.Since(w.idle), w.done, w.ended != nil
		w.mu.Unlock()
		var err error
		switch {
		case !done.IsZero():
			if !w.standby && !s.streams(ctx, w.member) && time.Since(done) < slotLinger {
				continue
			}
			err = errors.New("finished")
		case users == 0 && idle > windowIdle:
			err = fmt.Errorf("nobody has asked for %v", windowIdle)
		case !ended:
			err = w.check(ctx, s.maxWAL())
		}
		if err != nil {
			s.close(w, err)
		}
	}
}

// streams reports whether the member's own slot is in use: from then on that slot keeps the WAL.
func (s *Source) streams(ctx context.Context, m ag.ReplicaID) bool {
	conn, err := s.cfg.Connect(ctx)
	if err != nil {
		return false
	}
	defer closeConn(conn)
	var active bool
	err = conn.QueryRow(ctx, `SELECT coalesce(bool_or(active), false) FROM pg_replication_slots WHERE slot_name = 'cot_' || $1`, string(m)).Scan(&active)
	return err == nil && active
}

func (s *Source) all() []*window {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*window, 0, len(s.windows))
	for _, w := range s.windows {
		out = append(out, w)
	}
	return out
}

func (s *Source) close(w *window, why error) {
	s.mu.Lock()
	delete(s.windows, w.info.ID)
	s.mu.Unlock()
	w.mu.Lock()
	w.err = why
	w.mu.Unlock()
	s.drop(w)
	s.log.Info("backup window closed", "member", w.member, "window", w.info.ID, "why", why.Error())
}

func (s *Source) closeAll(why string, which func(*window) bool) {
	for _, w := range s.all() {
		if which(w) {
			s.close(w, errors.New(why))
		}
	}
}

// Serve answers one connection of a member until it ends. peer is the authenticated member.
func (s *Source) Serve(ctx context.Context, peer ag.ReplicaID, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	f := wire.NewConn(conn)
	var h wire.Hello
	if err := f.Expect(wire.FrameHello, wire.HelloTimeout, &h); err != nil {
		s.log.Info("no valid hello of a seeding", "peer", peer, "err", err)
		return
	}
	err := s.serve(ctx, peer, f, h)
	if err == nil || errors.Is(err, io.EOF) {
		return
	}
	s.log.Info("seeding connection ended", "peer", peer, "data", h.Data, "err", err)
	if errors.Is(err, wire.ErrSilent) { // the target is busy with its own disk: it dials again, and a refusal would end its copy
		return
	}
	r := wire.Refusal{Code: wire.CodeFailed, Message: err.Error()}
	var known *wire.RefusedError
	var bad *pagesum.CorruptError
	if errors.As(err, &known) {
		r = wire.Refusal{Code: known.Code, Message: known.Message}
	} else if errors.As(err, &bad) {
		r.Code = wire.CodeCorrupt
	}
	_ = f.WriteJSON(wire.FrameRefusal, r) // the connection may be gone, which is why it ended
}

func (s *Source) serve(ctx context.Context, peer ag.ReplicaID, f *wire.Conn, h wire.Hello) error {
	e, serves := s.cfg.Leads()
	what := "the primary"
	if h.After != nil {
		e, serves = s.follows()
		what = "a healthy secondary"
	}
	switch {
	case h.Version != wire.ProtocolVersion:
		return wire.Refuse(wire.CodeRefused, fmt.Sprintf("this node speaks version %d of the seeding protocol, not %d; run the same version of coterie on both", wire.ProtocolVersion, h.Version))
	case h.Member != peer:
		return wire.Refuse(wire.CodeRefused, fmt.Sprintf("the connection says it is of %q, its certificate is of %q", h.Member, peer))
	case !serves || h.Epoch != e:
		return wire.Refuse(wire.CodeRefused, fmt.Sprintf("this node is not %s of epoch %d", what, h.Epoch))
	}
	w, err := s.window(ctx, f, h)
	if err != nil {
		return err
	}
	if err := w.use(h.Data); err != nil {
		return err
	}
	defer w.release()
	if err := f.WriteJSON(wire.FrameWindow, w.info); err != nil {
		return err
	}
	if h.Data {
		return w.serveData(ctx, f)
	}
	return s.serveControl(ctx, f, w, h.Listed && h.Window == w.info.ID)
}

func (s *Source) follows() (ag.Epoch, bool) {
	if s.cfg.Follows == nil {
		return 0, false
	}
	return s.cfg.Follows()
}

// window returns the window of the connection, or opens one.
func (s *Source) window(ctx context.Context, f *wire.Conn, h wire.Hello) (*window, error) {
	s.mu.Lock()
	w, found := s.windows[h.Window]
	if found && w.member != h.Member {
		found = false
	}
	if found || h.Data {
		s.mu.Unlock()
		if !found {
			return nil, wire.Refuse(wire.CodeGone, "the backup window has ended")
		}
		return w, nil
	}
	if others := s.others(h.Member); len(others) > 0 {
		s.mu.Unlock()
		return nil, wire.Refuse(wire.CodeBusy, fmt.Sprintf("this node is the source of %v already; the copy begins when that has ended", others))
	}
	var old []*window
	for _, w := range s.windows {
		if w.member == h.Member {
			old = append(old, w)
		}
	}
	s.opening[h.Member] = !h.Anchor
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.opening, h.Member)
		s.mu.Unlock()
	}()
	for _, w := range old {
		s.close(w, errors.New("the replica begins another seeding"))
	}
	w, err := s.openPatiently(ctx, f, h)
	if err != nil {
		return nil, err
	}
	if h.SystemID != "" && h.SystemID != w.info.SystemID {
		s.drop(w)
		return nil, wire.Refuse(wire.CodeRefused, fmt.Sprintf("the copy there is of another cluster (system identifier %s, this one is %s)", h.SystemID, w.info.SystemID))
	}
	s.mu.Lock()
	s.windows[w.info.ID] = w
	s.mu.Unlock()
	s.log.Info("backup window opened", "member", h.Member, "window", w.info.ID, "start", w.info.Start.String(), "files", len(w.files))
	return w, nil
}

// others returns the members whose copies are made before a new copy of this member. The caller holds s.mu. All copies
// of a cluster have about the same size, so the size of the other windows predicts the size of this one. A window that
// is being opened has no size yet, and counts as heavy until then.
func (s *Source) others(m ag.ReplicaID) []ag.ReplicaID {
	var all, heavy []ag.ReplicaID
	for _, w := range s.windows {
		w.mu.Lock()
		copied := !w.done.IsZero()
		w.mu.Unlock()
		if w.member == m || copied {
			continue
		}
		if all = append(all, w.member); w.size() >= heavyBytes {
			heavy = append(heavy, w.member)
		}
	}
	for id, copies := range s.opening {
		if all = append(all, id); copies {
			heavy = append(heavy, id)
		}
	}
	if _, begins := s.opening[m]; begins || len(all) >= maxWindows {
		return all
	}
	if len(heavy) >= max(s.cfg.AtOnce, 1) {
		return heavy
	}
	return nil
}

// openPatiently opens a window and sends pings meanwhile, because a checkpoint may take long.
func (s *Source) openPatiently(ctx context.Context, f *wire.Conn, h wire.Hello) (*window, error) {
	type result struct {
		w   *window
		err error
	}
	opened := make(chan result, 1)
	go func() {
		w, err := s.open(ctx, h)
		opened <- result{w, err}
	}()
	t := time.NewTicker(5 * time.Second)
	defer t.Stop()
	for {
		select {
		case r := <-opened:
			return r.w, r.err
		case <-t.C:
			if err := errors.Join(f.Write(wire.FramePing), f.Flush()); err != nil {
				if r := <-opened; r.w != nil {
					s.drop(r.w)
				}
				return nil, err
			}
		}
	}
}

// use counts a connection, or refuses it. Connections that were cut off in silence are counted until they are noticed.
func (w *window) use(data bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return wire.Refuse(wire.CodeGone, "the backup window has ended")
	case data && w.users > wire.MaxStreams:
		return wire.Refuse(wire.CodeBusy, fmt.Sprintf("%d connections of this copy are open; some may have been cut off, which shows within a minute", w.users))
	}
	w.users++
	return nil
}

func (w *window) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.users--
	w.idle = time.Now()
}

func (w *window) open() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		return nil
	}
	why := "the backup window has ended"
	if w.err != nil {
		why = w.err.Error()
	}
	return wire.Refuse(wire.CodeGone, why)
}

// serveControl sends the list and then answers the target's questions about the whole copy.
func (s *Source) serveControl(ctx context.Context, f *wire.Conn, w *window, listed bool) error {
	if !listed {
		if err := w.sendList(f); err != nil { // an anchor's list is empty
			return err
		}
	}
	for {
		kind, _, err := f.Read(wire.Silence)
		if err != nil {
			return err
		}
		if err := w.open(); err != nil {
			return err
		}
		switch kind {
		case wire.FramePing:
			err = errors.Join(f.Write(wire.FramePing), f.Flush())
		case wire.FrameEnd:
			ctx, cancel := context.WithTimeout(ctx, wire.ControlBudget)
			var e wire.Ending
			if e, err = w.end(ctx); err == nil {
				err = f.WriteJSON(wire.FrameEnd, e)
			}
			cancel()
		case wire.FrameDone:
			w.mu.Lock()
			w.done = time.Now()
			w.mu.Unlock()
		default:
			err = fmt.Errorf("a frame %q on a control connection", kind)
		}
		if err != nil {
			return err
		}
	}
}

func (w *window) sendList(f *wire.Conn) error {
	for at := 0; at < len(w.files); at += listPart {
		b, err := json.Marshal(w.files[at:min(at+listPart, len(w.files))])
		if err != nil {
			return err
		}
		if err := f.Write(wire.FrameFiles, s2.Encode(nil, b)); err != nil {
			return err
		}
	}
	return errors.Join(f.Write(wire.FrameListed), f.Flush())
}

func newWindowID() string { return rand.Text() }

func isGone(err error) bool { return errors.Is(err, os.ErrNotExist) }
