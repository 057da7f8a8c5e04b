package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lab/linkem"
)

// TestGroupInNamespaces runs a whole group, kills its network under it, and cuts its primary off.
func TestGroupInNamespaces(t *testing.T) {
	if testing.Short() {
		t.Skip("runs two servers")
	}
	l := upNamespaced(t, Options{Replicas: 2, Witness: true})
	s, err := l.Status(t.Context())
	if err != nil || !s.Ready() || s.Net.Kind != NetNamespaces || s.Net.PID == nil || s.Net.Finding != "" || len(s.Links) != 12 {
		t.Fatalf("status: %+v, %v", s, err)
	}
	if want := fmt.Sprintf("@%s:5432,%s:5432/postgres", s.Replicas[0].Address, s.Replicas[1].Address); !strings.Contains(s.Listener.ReadWrite, want) {
		t.Errorf("%s does not list %s", s.Listener.ReadWrite, want)
	}
	fromTheHost(t, l, s)
	inItsNamespace(t, l, "n1")

	query(t, s.Listener.ReadWrite, "CREATE TABLE kept (id int PRIMARY KEY)")
	w := startWriter(t, s.Listener.ReadWrite)
	killNetwork(t, l)
	if s, err = l.Status(t.Context()); err != nil || s.Net.PID != nil || !strings.Contains(s.Net.Finding, "coterie lab up") {
		t.Errorf("status without a network: %+v, %v", s.Net, err)
	}
	if _, err := l.Heal(t.Context(), AllEnds, AllEnds, false); err != nil {
		t.Fatal(err)
	}
	w.awaitMore(t, l)
	await(t, l, "ready over a new network", Status.Ready)

	s, err = l.Status(t.Context())
	if err != nil || s.Primary == nil {
		t.Fatalf("%+v %v", s, err)
	}
	old := *s.Primary
	if _, err := l.Cut(t.Context(), old, AllNodes, false, false); err != nil {
		t.Fatal(err)
	}
	await(t, l, "another primary", func(s Status) bool { return s.Primary != nil && *s.Primary != old })
	w.awaitMore(t, l)
	if _, err := l.Heal(t.Context(), old, AllNodes, true); err != nil {
		t.Fatal(err)
	}
	await(t, l, "the old primary is back", Status.Ready)
	w.awaitMore(t, l)
	w.verify(t, l)

	if err := l.Kill(old, WhatNode); err != nil {
		t.Fatal(err)
	}
	if err := l.Start(old); err != nil {
		t.Fatal(err)
	}
	await(t, l, "a node started again", Status.Ready)
	inItsNamespace(t, l, old)
	down(t, l)
	nothingLeft(t, l)
}

// fromTheHost uses the listener and the HTTP port from outside of the namespaces, also as an ordinary user.
func fromTheHost(t *testing.T, l *Lab, s Status) {
	t.Helper()
	if got := query(t, s.Listener.ReadOnly, "SELECT pg_is_in_recovery()"); got != "true" {
		t.Errorf("the read-only listener gave a server with pg_is_in_recovery %s", got)
	}
	for _, r := range s.Replicas {
		answer, err := (&http.Client{Timeout: 10 * time.Second}).Get(r.HTTP + "/health")
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %v %v", r.HTTP, answer, err)
			continue
		}
		_ = answer.Body.Close()
	}
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Log("NOT RUN: psql as an ordinary user, for there is none")
		return
	}
	uid, gid, err := nodeUser()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(psql, s.Listener.ReadWrite, "-Atwc", "SELECT 41 + 1")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	if out, err := cmd.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "42" {
		t.Errorf("as an ordinary user: %s %v", out, err)
	}
	b, err := json.Marshal(s)
	if err != nil || !strings.Contains(string(b), `"kind":"netns"`) || !strings.Contains(string(b), `"queue_drops":0`) {
		t.Errorf("%s %v", b, err)
	}
}

// inItsNamespace looks where the processes of a node are.
func inItsNamespace(t *testing.T, l *Lab, node string) {
	t.Helper()
	n := l.mustNode(t, node)
	ids, err := linkem.Processes(l.namespace(n))
	if err != nil {
		t.Fatal(err)
	}
	tr, err := l.find(n)
	if err != nil || !tr.running() {
		t.Fatalf("%s: %+v %v", node, tr, err)
	}
	for _, p := range tr.all {
		if p.alive() && !slices.Contains(ids, p.pid) {
			t.Errorf("process %d of %s, %q, is in another network", p.pid, node, p.argv)
		}
	}
}

// writer inserts rows one after the other, over any connection it gets, and remembers which were acknowledged.
type writer struct {
	mu    sync.Mutex
	acked []int
	count atomic.Int64
	last  atomic.Pointer[error] // the last error
}

func startWriter(t *testing.T, uri string) *writer {
	w := &writer{}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		var conn *pgx.Conn
		for i := 0; ctx.Err() == nil; i++ {
			each, done := context.WithTimeout(ctx, 60*time.Second) // more than connect_timeout for every node: a cut off primary holds its clients
			var err error
			if conn == nil {
				conn, err = pgx.Connect(each, uri)
			}
			if err == nil {
				_, err = conn.Exec(each, "INSERT INTO kept VALUES ("+strconv.Itoa(i)+")")
			}
			done()
			if err != nil {
				w.last.Store(&err)
				if conn != nil {
					_ = conn.Close(context.Background())
					conn = nil
				}
				time.Sleep(50 * time.Millisecond)
				continue
			}
			w.mu.Lock()
			w.acked = append(w.acked, i)
			w.mu.Unlock()
			w.count.Add(1)
			time.Sleep(5 * time.Millisecond)
		}
		if conn != nil {
			_ = conn.Close(context.Background())
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return w
}

// awaitMore waits until more rows have been acknowledged.
func (w *writer) awaitMore(t *testing.T, l *Lab) {
	t.Helper()
	from := w.count.Load()
	for deadline := time.Now().Add(2 * time.Minute); w.count.Load() < from+5; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			var err error
			if last := w.last.Load(); last != nil {
				err = *last
			}
			s, _ := l.Status(context.Background())
			b, _ := json.MarshalIndent(s, "", " ")
			_ = l.Logs(t.Context(), "", 25, false, func(line LogLine) { t.Log(line.Node, line.File, line.Line) })
			t.Fatalf("nothing more is acknowledged to the writer: %v\n%s", err, b)
		}
	}
}

// verify looks for every acknowledged row, on the primary.
func (w *writer) verify(t *testing.T, l *Lab) {
	t.Helper()
	w.mu.Lock()
	acked := slices.Clone(w.acked)
	w.mu.Unlock()
	have := map[string]bool{}
	for _, id := range strings.Fields(query(t, l.ReadWrite(), "SELECT id::text FROM kept")) {
		have[id] = true
	}
	lost := 0
	for _, id := range acked {
		if !have[strconv.Itoa(id)] {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d acknowledged rows are lost", lost, len(acked))
	}
	t.Logf("%d rows acknowledged, %d lost", len(acked), lost)
}

// TestFaultyNetwork breaks the network of three replicas over lossy links in several ways, and at last kills all of the
// lab.
func TestFaultyNetwork(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("breaks a lab's network for minutes; COTERIE_LONG=1 runs it")
	}
	bad := linkem.Shape{Delay: 5 * time.Millisecond, Loss: 0.005, Burst: 2}
	l := upNamespaced(t, Options{Links: bad})
	query(t, l.ReadWrite(), "CREATE TABLE kept (id int PRIMARY KEY)")
	w := startWriter(t, l.ReadWrite())
	for _, c := range []struct {
		what   string
		a, b   func(primary string) string
		reject bool
		oneWay bool
	}{
		{"what the primary sends is dropped", itself, theNodes, false, true},
		{"what is sent to the primary is dropped", theNodes, itself, false, true},
		{"the primary is rejected, both ways", itself, theNodes, true, false},
		{"the primary is cut off from all, its clients too", itself, func(string) string { return AllEnds }, false, false},
	} {
		w.awaitMore(t, l)
		s := await(t, l, "ready for: "+c.what, Status.Ready)
		old := *s.Primary
		began := time.Now()
		if _, err := l.Cut(t.Context(), c.a(old), c.b(old), c.reject, c.oneWay); err != nil {
			t.Fatal(err)
		}
		s = await(t, l, "another primary: "+c.what, func(s Status) bool { return s.Primary != nil && *s.Primary != old })
		t.Logf("%s: %s took over from %s after %v", c.what, *s.Primary, old, time.Since(began).Round(10*time.Millisecond))
		if _, err := l.Heal(t.Context(), AllEnds, AllEnds, true); err != nil {
			t.Fatal(err)
		}
		if k := statsOf(t, l, "n1", "n2"); k.Shape != bad {
			t.Errorf("healed to %+v", k.Shape)
		}
	}
	await(t, l, "ready at the end", Status.Ready)
	w.awaitMore(t, l)
	w.verify(t, l)

	killNetwork(t, l)
	for _, n := range l.Nodes() {
		if err := l.Kill(n.Name, WhatNode); err != nil {
			t.Fatal(err)
		}
	}
	down(t, l)
	nothingLeft(t, l)
}

func itself(primary string) string { return primary }
func theNodes(string) string       { return AllNodes }
