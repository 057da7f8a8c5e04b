package link_test

import (
	"context"
	"crypto/sha256"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/endpoint/link/linktest"
	"github.com/coteriedb/coterie/internal/lib/codec"
)

// weather is the properties of a path between two nodes; they change.
type weather struct {
	delay atomic.Int64 // of each direction
	lossy atomic.Bool
	began time.Time
}

// counters pretends that a thousand packets per second are sent, and that one in thirty is lost while it is lossy.
func (w *weather) counters() (sent, lost uint64) {
	ms := uint64(time.Since(w.began).Milliseconds())
	if w.lossy.Load() {
		return ms, ms / 30
	}
	return ms, 0
}

// slow is a transport whose writes arrive late.
type slow struct {
	net.Conn
	w      *weather
	kind   string
	late   chan lateWrite
	closed chan struct{}
	once   sync.Once
}

type lateWrite struct {
	at time.Time
	b  []byte
}

func newSlow(c net.Conn, kind string, w *weather) *slow {
	s := &slow{Conn: c, kind: kind, w: w, late: make(chan lateWrite, 10_000), closed: make(chan struct{})}
	go s.deliver()
	return s
}

// deliver writes the packets that are due until the transport is closed, and then those that were accepted before. A
// write that fails does not close the connection: the reader is to learn the end from the peer, whereas the error of a
// connection closed here names this node.
func (s *slow) deliver() {
	defer s.Conn.Close()
	put := func(l lateWrite) {
		time.Sleep(time.Until(l.at))
		_, _ = s.Conn.Write(l.b)
	}
	for {
		select {
		case l := <-s.late:
			put(l)
			continue
		case <-s.closed:
		}
		for {
			select {
			case l := <-s.late:
				put(l)
				continue
			default:
			}
			return
		}
	}
}

func (s *slow) Write(b []byte) (int, error) {
	select {
	case <-s.closed:
		return 0, net.ErrClosed
	default:
	}
	select {
	case s.late <- lateWrite{time.Now().Add(time.Duration(s.w.delay.Load())), slices.Clone(b)}:
		return len(b), nil
	case <-s.closed:
		return 0, net.ErrClosed
	}
}

func (s *slow) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (s *slow) Kind() string       { return s.kind }
func (s *slow) Congestion() string { return "none" }
func (s *slow) Counters() (time.Duration, uint64, uint64) {
	sent, lost := s.w.counters()
	return 2 * time.Duration(s.w.delay.Load()), sent, lost
}

// newWeather returns a path with two transports.
func newWeather(t *testing.T) (*weather, linktest.Net) {
	w := &weather{began: time.Now()}
	kinds := map[string]net.Listener{}
	for _, kind := range []string{link.TCP, link.QUIC} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		kinds[kind] = l
	}
	return w, linktest.Net{
		Prefer: link.PreferAuto,
		Attach: func(h *link.Hub) {
			var wg sync.WaitGroup
			for kind, l := range kinds {
				wg.Go(func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						wg.Go(func() {
							s := newSlow(c, kind, w)
							_ = h.Handle(context.Background(), "near", s)
							_ = s.Close()
						})
					}
				})
			}
			t.Cleanup(func() {
				for _, l := range kinds {
					_ = l.Close()
				}
				wg.Wait()
			})
		},
		Open: func(ctx context.Context, kind string) (link.Transport, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", kinds[kind].Addr().String())
			if err != nil {
				return nil, err
			}
			return newSlow(c, kind, w), nil
		},
	}
}

// TestFollow turns a local network into a lossy long path and back, under load: transport and codec follow, each change
// says why, and the stream is never interrupted.
func TestFollow(t *testing.T) {
	t.Parallel()
	w, n := newWeather(t)
	cfg := linktest.Config("AUTO")
	cfg.Compression = func() codec.Setting { return codec.Setting{Auto: true} }
	p := linktest.Open(t, n, cfg)
	stop := make(chan struct{})
	sent, got := sha256.New(), sha256.New()
	var bytes int
	var load sync.WaitGroup
	load.Go(func() {
		b := []byte(strings.Repeat("row after row;", 100))
		for i := 0; ; i++ {
			select {
			case <-stop:
				_ = p.Near.CloseWrite()
				return
			case <-time.After(2 * time.Millisecond):
			}
			b[i%len(b)]++
			_, _ = sent.Write(b)
			if _, err := p.Near.Write(b); err != nil {
				t.Errorf("write: %v", err)
				return
			}
		}
	})
	load.Go(func() {
		err := p.Far.Receive(func(b []byte) error { bytes += len(b); _, err := got.Write(b); return err })
		if err != nil {
			t.Errorf("read: %v", err)
		}
	})
	main := func(s link.Status) string {
		for _, l := range s.Legs {
			if l.Main {
				return l.Kind
			}
		}
		return ""
	}
	await := func(what string, ok func(near, far link.Status) bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			near, far := p.Near.Status(), p.Far.Status()
			if ok(near, far) {
				return
			}
			if time.Now().After(end) {
				t.Errorf("waited in vain for %s:\nnear %+v\nfar %+v", what, near, far)
				return
			}
		}
	}
	local := func(near, far link.Status) bool {
		return near.RTT > 0 && main(near) == link.TCP && main(far) == link.TCP && !near.Twice && !far.Twice && near.Codec == "OFF" && len(near.Legs) == 1
	}
	await("a local network", local)
	w.delay.Store(int64(5 * time.Millisecond))
	w.lossy.Store(true)
	await("a lossy path", func(near, far link.Status) bool {
		return main(near) == link.QUIC && main(far) == link.QUIC && near.Twice && far.Twice && near.Codec == "ZSTD:1"
	})
	w.delay.Store(0)
	w.lossy.Store(false)
	await("a local network again", local)
	close(stop)
	load.Wait()
	if string(sent.Sum(nil)) != string(got.Sum(nil)) {
		t.Errorf("what was read (%d bytes) is not what was written", bytes)
	}
	var told []string
	for _, e := range p.Near.Status().Events {
		told = append(told, e.What+": "+e.Reason)
	}
	for _, want := range []string{"local network", "lossy", "codec changed: OFF to ZSTD:1", "codec changed: ZSTD:1 to OFF", "main leg changed: quic"} {
		if !slices.ContainsFunc(told, func(s string) bool { return strings.Contains(s, want) }) {
			t.Errorf("no event says %q: %q", want, told)
		}
	}
	lost := func(s string) bool { // and not closed by this side, as those for the lossy path are
		return strings.Contains(s, "leg lost: tcp") && !strings.Contains(s, net.ErrClosed.Error())
	}
	if p.Near.Status().Sent == 0 || slices.ContainsFunc(told, lost) {
		t.Errorf("events: %q", told)
	}
}
