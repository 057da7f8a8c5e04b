package listenerbench

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// spareFiles are open in a listener, or in the process of clients and backends, beside two for each session.
const spareFiles = 100

// idle opens sessions that do nothing, over backends that do nothing, and looks how much memory the listener's process
// then has.
func (b *ListenerBench) idle(ctx context.Context, bed *listenerBed, kind string) (err error) {
	files, err := moreFiles()
	if err != nil {
		return err
	}
	n := min(b.O.Sessions, (files-spareFiles)/2)
	dir, err := os.MkdirTemp("/tmp", "cbs")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	stub, err := serveStub(ctx, dir)
	if err != nil {
		return err
	}
	defer stub.close()
	// The other listener holds the port.
	if err := bed.listener.Stop(); err != nil {
		return err
	}
	if bed.listener, err = bed.startListener(ctx, wayListener, filepath.Join(dir, ".s.PGSQL.5432"), ""); err != nil {
		return err
	}
	v := idle{Sessions: n, Empty: anonymous(bed.listener.Pid())}
	clients, err := openIdle(ctx, n, "127.0.0.1:"+strconv.Itoa(bed.ports[wayListener]), kind == "tls")
	defer func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}()
	if err != nil {
		return err
	}
	time.Sleep(5 * time.Second)
	v.MB = anonymous(bed.listener.Pid())
	held := v.MB
	if n < b.O.Sessions { // the rest is reckoned
		v.MB = v.Empty + (v.MB-v.Empty)*float64(b.O.Sessions)/float64(n)
		v.Limit = fmt.Sprintf("%d sessions took %.0f MB, reckoned up to %d: a listener has two files open for each session, and this process may have no more "+
			"than %d (hard limit of RLIMIT_NOFILE, which only CAP_SYS_RESOURCE may raise)", n, held, b.O.Sessions, files)
	}
	b.IdleMB[kind] = v
	b.say("%d idle sessions, %s: %.0f MB", n, kind, held)
	return nil
}

var anonLine = regexp.MustCompile(`RssAnon:\s+([0-9]+) kB`)

// anonymous is the anonymous memory of a process, in MB.
func anonymous(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	m := anonLine.FindSubmatch(text)
	if err != nil || m == nil {
		return 0
	}
	kb, _ := strconv.Atoi(string(m[1]))
	return float64(kb) / 1024
}

// stubServer accepts every login as PostgreSQL does, and then sends nothing, unless it has answers.
type stubServer struct {
	l       net.Listener
	answers *recorded // nil: none
	wg      sync.WaitGroup
	mu      sync.Mutex
	conns   []net.Conn // guarded by mu
}

func serveStub(ctx context.Context, dir string) (*stubServer, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		return nil, err
	}
	s := &stubServer{l: l}
	s.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if err := greet(conn); err != nil {
				_ = conn.Close()
				continue
			}
			s.mu.Lock()
			s.conns = append(s.conns, conn)
			s.mu.Unlock()
			if s.answers != nil {
				s.wg.Go(func() { s.answers.serve(conn) })
			}
		}
	})
	return s, nil
}

func (s *stubServer) close() {
	_ = s.l.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func greet(conn net.Conn) error {
	var head [4]byte
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(head[:]))-4); err != nil {
		return err
	}
	message := func(typ byte, body string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{typ}, uint32(len(body)+4)), body...)
	}
	_, err := conn.Write(slices.Concat(message('R', "\x00\x00\x00\x00"), message('K', "\x00\x00\x00\x01abcd"), message('Z', "I")))
	return err
}

// openIdle logs that many clients in, some at a time.
func openIdle(ctx context.Context, n int, address string, encrypted bool) (all []net.Conn, err error) {
	const atOnce = 8
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for i := range atOnce {
		wg.Go(func() {
			for j := i; j < n; j += atOnce {
				conn, err := logIn(ctx, address, encrypted)
				mu.Lock()
				if err != nil {
					failed = fmt.Errorf("session %d: %w", j, err)
					mu.Unlock()
					return
				}
				all = append(all, conn)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return all, failed
}

func logIn(ctx context.Context, address string, encrypted bool) (net.Conn, error) {
	raw, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conn := raw
	if encrypted { // as libpq's sslnegotiation=direct
		conn = tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"postgresql"}}) //nolint:gosec // a throw-away server
	}
	_ = raw.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := conn.Write(appStartup()); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	greeting := make([]byte, 0, 512)
	for !strings.HasSuffix(string(greeting), "Z\x00\x00\x00\x05I") {
		n, err := conn.Read(greeting[len(greeting):cap(greeting)])
		greeting = greeting[:len(greeting)+n]
		if err != nil || len(greeting) == cap(greeting) {
			return nil, errors.Join(fmt.Errorf("no greeting: %q", greeting), err, raw.Close())
		}
	}
	return conn, nil
}
