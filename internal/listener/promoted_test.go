package listener

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/auth"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// greetAsStandby opens a session as a standby does. It returns the report of in_hot_standby and ReadyForQuery.
func greetAsStandby(conn net.Conn) (status func(value string) []byte, ready []byte) {
	status = func(value string) []byte {
		return pgwire.AppendMessage(nil, 'S', []byte("in_hot_standby\x00"+value+"\x00"))
	}
	ready = pgwire.AppendMessage(nil, 'Z', []byte{'I'})
	b := pgwire.AppendMessage(append(pgwire.AppendAuth(nil, auth.OK, nil), status("on")...), 'K', []byte("\x00\x00\x00\x07abcd"))
	_, _ = conn.Write(append(b, ready...))
	return status, ready
}

// promotedServer answers as a standby does that is promoted while the session is open: the write that follows is the
// first sign of it.
func promotedServer(conn net.Conn) {
	status, ready := greetAsStandby(conn)
	for {
		typ, body, err := pgwire.ReadMessage(conn, 1<<20)
		if err != nil || typ != 'Q' {
			return
		}
		tag, off := "SELECT 1\x00", []byte(nil)
		switch text := string(body); {
		case strings.HasPrefix(text, "insert, then the status"):
			tag, off = "INSERT 0 1\x00", status("off")
		case strings.HasPrefix(text, "insert"):
			tag = "INSERT 0 1\x00"
		case strings.HasPrefix(text, "function"):
			off = status("off")
		}
		answer := pgwire.AppendMessage(nil, 'C', []byte(tag))
		if _, err := conn.Write(append(append(answer, off...), ready...)); err != nil {
			return
		}
	}
}

// A session that began on a standby is ended by the first answer that shows a promotion, and nothing of that answer
// passes, on each data path. Its outcome is not known: it may have written.
func TestPromotionUnderASession(t *testing.T) {
	for _, path := range dataPaths(t) {
		for _, request := range []string{"insert, then the status", "insert", "function that writes"} {
			if path == PathKernel && request == "insert" {
				continue // the kernel passes whole answers on, and PostgreSQL's have the status in them
			}
			t.Run(path+" "+request, func(t *testing.T) {
				g := newGroup(t, func(c *Config) {
					c.Rules, c.NoKernelPath, c.offloadAfter = trustAll, path != PathKernel, 1
					if path == PathGoroutines {
						c.Loops = -1
					}
				})
				r := fullRoutes(1)
				r.Self, r.ReadList = "b", [][]ag.ReplicaID{{"b"}}
				for i := range r.Targets {
					r.Targets[i].Local = r.Targets[i].ID == "b"
				}
				g.publish(r)
				g.srv.cfg.Backend = fakeBackend(t, promotedServer)
				conn, err := net.Dial("tcp", g.ro)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
				_, _ = conn.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
				readUntil(t, conn, 'Z')
				g.ask(conn, "select 1")
				if path == PathKernel {
					g.untilOffloaded(t, conn)
				}
				_, _ = conn.Write(query(request))
				typ, body, err := pgwire.ReadMessage(conn, 1<<20)
				if err != nil || typ != 'E' || pgwire.ErrorField(body, 'C') != "08007" || !strings.Contains(pgwire.ErrorField(body, 'M'), "promoted") {
					t.Errorf("heard %c %q, %v", typ, body, err)
				}
				waitFor(t, "it is counted", func() bool { return g.srv.Stats().Cut["promoted"] == 1 })
				g.carried(t, path, 1)
			})
		}
	}
}

// The answer to the question for a session's state shows a promotion, too.
func TestPromotionIsSeenInTheAnswerOfAState(t *testing.T) {
	for _, loops := range []int{0, -1} {
		g := movingGroup(t, func(c *Config) { c.Loops = loops })
		r := fullRoutes(1)
		r.Self, r.ReadList = "b", [][]ag.ReplicaID{{"b"}}
		for i := range r.Targets {
			r.Targets[i].Local = r.Targets[i].ID == "b"
		}
		g.publish(r)
		g.srv.cfg.Backend = fakeBackend(t, func(conn net.Conn) {
			status, ready := greetAsStandby(conn)
			for {
				typ, _, err := pgwire.ReadMessage(conn, 1<<20)
				if err != nil {
					return
				}
				if typ == 'S' || typ == 'Q' {
					_, _ = conn.Write(append(status("off"), ready...))
				}
			}
		})
		conn, err := net.Dial("tcp", g.ro)
		must(t, err)
		_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
		_, _ = conn.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
		readUntil(t, conn, 'Z')
		g.srv.Moves(t.Context())
		typ, body, err := pgwire.ReadMessage(conn, 1<<20)
		if err != nil || typ != 'E' || !strings.Contains(pgwire.ErrorField(body, 'M'), "promoted") {
			t.Errorf("with %d loops: heard %c %q, %v", loops, typ, body, err)
		}
		_ = conn.Close()
	}
}
