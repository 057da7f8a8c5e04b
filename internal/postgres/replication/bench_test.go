package replication

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// patience is for waits whose end is certain on a healthy machine; a busy one is not a failure.
const patience = time.Minute

// walsender is the server's end of one connection, played by the test.
type walsender struct {
	t       *testing.T
	conn    net.Conn
	r       *bufio.Reader
	startup startup
}

// fakeServer accepts connections as PostgreSQL does, and hands them to the test.
type fakeServer struct {
	dir   string
	conns chan *walsender
}

func newFakeServer(t *testing.T) *fakeServer {
	dir := shortDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, socketName))
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeServer{dir: dir, conns: make(chan *walsender, 16)}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.conns <- &walsender{t: t, conn: conn, r: bufio.NewReader(conn)}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		accepting.Wait()
		close(f.conns)
		for w := range f.conns {
			_ = w.conn.Close()
		}
	})
	return f
}

// next returns the next connection with its startup packet read.
func (f *fakeServer) next(t *testing.T) *walsender {
	t.Helper()
	select {
	case w := <-f.conns:
		t.Cleanup(func() { _ = w.conn.Close() })
		_ = w.conn.SetDeadline(time.Now().Add(patience))
		s, err := readStartup(struct {
			io.Reader
			io.Writer
		}{w.r, w.conn})
		if err != nil {
			t.Fatal(err)
		}
		w.startup = s
		return w
	case <-time.After(patience):
		t.Fatal("no connection to the server")
		return nil
	}
}

// read returns the next message.
func (w *walsender) read() (frame, error) { return readMessage(w.r) }

func readMessage(r *bufio.Reader) (frame, error) {
	var head [headerLen]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	b := append(head[:], make([]byte, binary.BigEndian.Uint32(head[1:])-4)...)
	_, err := io.ReadFull(r, b[headerLen:])
	return frame{kind: b[0], head: b, size: len(b)}, err
}

func (w *walsender) mustRead() frame {
	w.t.Helper()
	f, err := w.read()
	if err != nil {
		w.t.Fatalf("server reads: %v", err)
	}
	return f
}

func (w *walsender) write(msgs ...[]byte) {
	w.t.Helper()
	if _, err := w.conn.Write(bytes.Join(msgs, nil)); err != nil {
		w.t.Fatalf("server writes: %v", err)
	}
}

// silent reports that nothing arrives for a moment.
func (w *walsender) silent() bool {
	_ = w.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	_, err := w.r.Peek(1)
	_ = w.conn.SetReadDeadline(time.Now().Add(patience))
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// ended reports that the connection is closed.
func ended(conn net.Conn, r *bufio.Reader) bool {
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	_, err := io.Copy(io.Discard, r)
	var timeout net.Error
	return !errors.As(err, &timeout) || !timeout.Timeout()
}

// peer is the secondary's end of a stream, played by the test.
type peer struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

func (p *peer) write(b []byte) {
	p.t.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatalf("peer writes: %v", err)
	}
}

func (p *peer) mustRead() frame {
	p.t.Helper()
	f, err := readMessage(p.r)
	if err != nil {
		p.t.Fatalf("peer reads: %v", err)
	}
	return f
}

var walHello = Hello{Kind: KindWAL, Member: "s1", Epoch: 3, Copy: "c1"}

// bench is a Downstream in front of a fake server.
type bench struct {
	t      *testing.T
	server *fakeServer
	d      *Downstream
	wire   string
	facts  PrimaryFacts
	as     ag.ReplicaID // the certificate's identity
}

func newBench(t *testing.T, change func(*DownstreamConfig)) *bench {
	b := &bench{t: t, server: newFakeServer(t), facts: PrimaryFacts{Leading: true, Epoch: 3, TLI: 2, Switch: 0x1000}, as: "s1"}
	cfg := DownstreamConfig{
		SocketDir: b.server.dir, Superuser: func() string { return "admin" }, Self: func() PrimaryFacts { return b.facts },
	}
	if change != nil {
		change(&cfg)
	}
	b.d = NewDownstream(cfg)
	b.d.SetEpoch(3, true)
	b.wire = filepath.Join(b.server.dir, "wire")
	l, err := net.Listen("unix", b.wire)
	if err != nil {
		t.Fatal(err)
	}
	var handling sync.WaitGroup
	handling.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			handling.Go(func() { b.d.Handle(context.Background(), b.as, conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		b.d.Close()
		handling.Wait()
	})
	return b
}

func (b *bench) dial() *peer {
	b.t.Helper()
	conn, err := net.Dial("unix", b.wire)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	return &peer{t: b.t, conn: conn, r: bufio.NewReader(conn)}
}

// open opens a stream up to the OK.
func (b *bench) open(h Hello) (*peer, *walsender) {
	b.t.Helper()
	p := b.dial()
	a, err := Open(b.t.Context(), p.conn, h)
	if err != nil {
		b.t.Fatal(err)
	}
	if !a.OK || a.Epoch != 3 || a.TLI != 2 || a.Switch != 0x1000 {
		b.t.Errorf("answer = %+v", a)
	}
	_ = p.conn.SetDeadline(time.Now().Add(patience))
	return p, b.server.next(b.t)
}

// stream opens a WAL stream up to streaming mode.
func (b *bench) stream() (*peer, *walsender) {
	b.t.Helper()
	p, w := b.open(walHello)
	p.write(message('Q', "START_REPLICATION SLOT \"cot_s1\" 0/1000\x00"))
	if f := w.mustRead(); f.kind != 'Q' {
		b.t.Fatalf("server got %q", f.kind)
	}
	w.write(message('W', "\x00\x00\x00"))
	if f := p.mustRead(); f.kind != 'W' {
		b.t.Fatalf("peer got %q", f.kind)
	}
	return p, w
}

// plainStatus is a status update that wants no reply.
func plainStatus(s status) []byte {
	b := statusUpdate(s)
	b[statusLen-1] = 0
	return b
}
