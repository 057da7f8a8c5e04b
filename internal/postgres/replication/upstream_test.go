package replication

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// station is an Upstream whose sources are played by the test.
type station struct {
	t    *testing.T
	u    *Upstream
	path string
	ends chan net.Conn // the far ends of what was dialed
	stop func()
}

func newStation(t *testing.T, change func(*UpstreamConfig)) *station {
	dir := shortDir(t)
	cfg := UpstreamConfig{Dir: dir, Hello: func() Hello { return Hello{Member: "s1", Copy: "c1"} }}
	if change != nil {
		change(&cfg)
	}
	s := &station{t: t, u: NewUpstream(cfg), path: filepath.Join(dir, socketName), ends: make(chan net.Conn, 16)}
	// A socket left behind by an agent that was killed.
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.u.Serve(ctx); err != nil {
			t.Error(err)
		}
	})
	s.stop = func() {
		cancel()
		serving.Wait()
	}
	t.Cleanup(s.stop)
	return s
}

func (s *station) source(epoch ag.Epoch) *Source {
	return &Source{Epoch: epoch, Replica: "p1", Dial: func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		s.ends <- far
		return near, nil
	}}
}

// connect connects as a walreceiver does, or as an ordinary session.
func (s *station) connect(kind string) *peer {
	s.t.Helper()
	var conn net.Conn
	waitFor(s.t, "the socket", func() bool {
		var err error
		conn, err = net.Dial("unix", s.path)
		return err == nil
	})
	s.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	p := &peer{t: s.t, conn: conn, r: bufio.NewReader(conn)}
	packet := startupPacket(Hello{Kind: kind, Member: "x"}, "anyone")
	if kind == KindWAL {
		packet = pgwire.StartupMessage(pgwire.Parameter{Name: "user", Value: "anyone"}, pgwire.Parameter{Name: "replication", Value: "true"}, pgwire.Parameter{Name: "application_name", Value: Walreceiver})
	}
	p.write(packet)
	return p
}

// accept takes the next dialed connection, reads its Hello and answers.
func (s *station) accept(a Answer) (*peer, Hello) {
	s.t.Helper()
	var h Hello
	select {
	case conn := <-s.ends:
		s.t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(patience))
		if err := readFrame(conn, &h); err != nil {
			s.t.Fatal(err)
		}
		if err := writeFrame(conn, a); err != nil {
			s.t.Fatal(err)
		}
		return &peer{t: s.t, conn: conn, r: bufio.NewReader(conn)}, h
	case <-time.After(patience):
		s.t.Fatal("the source was not dialed")
		return nil, h
	}
}

func ok(epoch ag.Epoch) Answer { return Answer{OK: true, Epoch: epoch} }

func TestHoldUntilSource(t *testing.T) {
	t.Parallel()
	s := newStation(t, nil)
	local := s.connect(KindWAL)
	waitFor(t, "the connection to be held", func() bool { return s.u.Status().Held == 1 })
	s.u.SetSource(s.source(5))
	remote, h := s.accept(ok(5))
	if h.Kind != KindWAL || h.Epoch != 5 || h.Member != "s1" || h.Copy != "c1" {
		t.Errorf("hello = %+v", h)
	}
	remote.write(message('Z', "I"))
	if f := local.mustRead(); f.kind != 'Z' {
		t.Errorf("local got %q", f.kind)
	}
	local.write(message('Q', "IDENTIFY_SYSTEM\x00"))
	if f := remote.mustRead(); f.kind != 'Q' {
		t.Errorf("remote got %q", f.kind)
	}
	st := s.u.Status()
	if !st.Connected || st.Held != 0 || st.Replica != "p1" || st.Epoch != 5 || st.Received == 0 || st.LastRead == 0 {
		t.Errorf("status = %+v", st)
	}
	s.u.SetSource(s.source(5)) // the same: stays
	remote.write(message('Z', "I"))
	local.mustRead()
	s.u.SetSource(s.source(6)) // another epoch: ends
	if !ended(local.conn, local.r) {
		t.Error("a connection of the old epoch stays open")
	}
}

func TestHeldConnectionGoes(t *testing.T) {
	t.Parallel()
	s := newStation(t, nil)
	local := s.connect(KindWAL)
	waitFor(t, "the connection to be held", func() bool { return s.u.Status().Held == 1 })
	_ = local.conn.Close()
	waitFor(t, "its end to be seen", func() bool { return s.u.Status().Held == 0 })
}

// TestSeal seals one connection in each state: joined, waiting for the answer, held.
func TestSeal(t *testing.T) {
	t.Parallel()
	s := newStation(t, nil)
	s.u.SetSource(s.source(1))
	joined := s.connect(KindWAL)
	remote, _ := s.accept(ok(1))
	remote.write(message('Z', "I"))
	joined.mustRead()
	asking := s.connect(KindWAL)
	end := <-s.ends // never answered
	var h Hello
	if err := readFrame(end, &h); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := s.u.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	if st := s.u.Status(); st.Connected || st.Replica != "" {
		t.Errorf("status after Seal = %+v", st)
	}
	if _, err := remote.conn.Write([]byte("late")); err == nil {
		t.Error("the source can still write")
	}
	if !ended(joined.conn, joined.r) {
		t.Error("the joined connection stays open")
	}
	waitFor(t, "the asking connection to be held again", func() bool { return s.u.Status().Held == 1 })
	s.u.SetSource(s.source(2))
	remote, _ = s.accept(ok(2))
	remote.write(message('Z', "I"))
	if f := asking.mustRead(); f.kind != 'Z' {
		t.Errorf("the held connection got %q", f.kind)
	}
}

func TestRefusedWalreceiverIsHeld(t *testing.T) {
	t.Parallel()
	s := newStation(t, nil)
	local := s.connect(KindWAL)
	s.u.SetSource(s.source(1))
	s.accept(Answer{Code: CodeDiverged, Message: "other bytes", Epoch: 1})
	waitFor(t, "the refusal to be known", func() bool { return s.u.Status().Answer.Code == CodeDiverged })
	if st := s.u.Status(); st.AnswerFrom != "p1" || st.AnswerEpoch != 1 || st.Connected || st.Err == "" {
		t.Errorf("status = %+v", st)
	}
	s.accept(ok(9)) // an answer of another epoch is none
	remote, _ := s.accept(ok(1))
	remote.write(message('Z', "I"))
	if f := local.mustRead(); f.kind != 'Z' {
		t.Errorf("local got %q", f.kind)
	}
}

func TestRefusedSessionIsTold(t *testing.T) {
	t.Parallel()
	s := newStation(t, nil)
	s.u.SetSource(s.source(1))
	local := s.connect(KindQuery)
	if _, h := s.accept(Answer{Code: CodeNotPrimary, Message: "not me", Epoch: 1}); h.Kind != KindQuery {
		t.Errorf("kind = %q", h.Kind)
	}
	if f := local.mustRead(); f.kind != 'E' {
		t.Errorf("local got %q", f.kind)
	}
	if s.u.Status().AnswerAt != 0 {
		t.Error("the refusal of a session counts as the walreceiver's")
	}
}

// TestPromisedEpoch checks that a source is not asked once this node is in a later epoch.
func TestPromisedEpoch(t *testing.T) {
	t.Parallel()
	s := newStation(t, func(c *UpstreamConfig) { c.Hello = func() Hello { return Hello{Member: "s1", Epoch: 8} } })
	s.u.SetSource(s.source(7))
	s.connect(KindWAL)
	waitFor(t, "the attempt", func() bool { return s.u.Status().Err != "" })
	if len(s.ends) != 0 {
		t.Error("the source of an old epoch was dialed")
	}
}

func TestSourceComesLater(t *testing.T) {
	t.Parallel()
	s := newStation(t, nil)
	good := s.source(1)
	fails := 3
	s.u.SetSource(&Source{Epoch: 1, Replica: "p1", Dial: func(ctx context.Context) (net.Conn, error) {
		if fails--; fails >= 0 {
			return nil, errors.New("refused")
		}
		return good.Dial(ctx)
	}})
	local := s.connect(KindWAL)
	remote, _ := s.accept(ok(1))
	remote.write(message('Z', "I"))
	local.mustRead()
	if st := s.u.Status(); st.Err != "" {
		t.Errorf("status = %+v", st)
	}
}

func TestSilentSource(t *testing.T) {
	t.Parallel()
	s := newStation(t, func(c *UpstreamConfig) { c.DeadAfter = 200 * time.Millisecond })
	s.u.SetSource(s.source(1))
	local := s.connect(KindWAL)
	remote, _ := s.accept(ok(1))
	remote.write(message('Z', "I"))
	local.mustRead()
	if !ended(local.conn, local.r) {
		t.Error("a silent source keeps the walreceiver")
	}
}

func TestLocalGarbage(t *testing.T) {
	t.Parallel()
	s := newStation(t, nil)
	for _, b := range []string{
		"\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x02", // a cancel request
		"\xff\xff\xff\xff\x00\x03\x00\x00", "GET / HTTP/1.1\r\n\r\n",
	} {
		local := s.connect(KindQuery) // waits for the socket; its own packet is not looked at
		_ = local.conn.Close()
		conn, err := net.Dial("unix", s.path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(b)); err != nil {
			t.Fatal(err)
		}
		if !ended(conn, bufio.NewReader(conn)) {
			t.Errorf("a connection that begins with %.8q stays open", b)
		}
		_ = conn.Close()
	}
	conn, err := net.Dial("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	bad := "replication\x00maybe\x00\x00"
	packet := binary.BigEndian.AppendUint32(nil, uint32(8+len(bad)))
	packet = binary.BigEndian.AppendUint32(packet, pgwire.Protocol3)
	if _, err := conn.Write(append(packet, bad...)); err != nil {
		t.Fatal(err)
	}
	if f, err := readMessage(bufio.NewReader(conn)); err != nil || f.kind != 'E' {
		t.Errorf("replication=maybe: %q, %v", f.kind, err)
	}
}

func TestServeEnds(t *testing.T) {
	t.Parallel()
	s := newStation(t, nil)
	local := s.connect(KindWAL)
	waitFor(t, "the connection to be held", func() bool { return s.u.Status().Held == 1 })
	s.stop()
	if !ended(local.conn, local.r) {
		t.Error("a connection outlives Serve")
	}
	if _, err := os.Lstat(s.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	long := NewUpstream(UpstreamConfig{Dir: "/tmp/" + string(make([]byte, 100))})
	if err := long.Serve(t.Context()); err == nil {
		t.Error("a path of more than 107 bytes was served")
	}
}

// shortOfFiles is a listener whose process has no descriptor left for the first connections.
type shortOfFiles struct {
	net.Listener
	errs []error
}

func (l *shortOfFiles) Accept() (net.Conn, error) {
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		return nil, err
	}
	return l.Listener.Accept()
}

// TestUpstreamOutlivesShortageOfFiles checks that the socket of the walreceiver, and with it the agent, does not end
// because clients have taken all descriptors for a moment.
func TestUpstreamOutlivesShortageOfFiles(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := NewUpstream(UpstreamConfig{})
	short := &shortOfFiles{l, []error{syscall.EMFILE, syscall.ENFILE, syscall.EMFILE}}
	there, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = there.Close() }()
	here, err := u.accept(t.Context(), short)
	if err != nil {
		t.Fatal(err)
	}
	_ = here.Close()
	_ = l.Close()
	if _, err := u.accept(t.Context(), short); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a socket that was closed: %v", err)
	}
}
