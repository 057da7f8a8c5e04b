package listener

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/offload/offloadtest"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// pipeline is a random conversation with PostgreSQL, of requests that each end with one ReadyForQuery. Its answers
// are the same each time, so PostgreSQL itself, directly connected, is the model. The bytes through the listener must
// be the same, however the client's bytes are cut into pieces, and whether it waits for answers or not.
type pipeline struct {
	rng      *rand.Rand
	requests [][]byte
}

func newPipeline(seed uint64, n int) *pipeline {
	p := &pipeline{rng: rand.New(rand.NewPCG(seed, 6))}
	p.requests = append(p.requests, query("create temp table t(a int primary key, b text); set client_min_messages = notice"))
	for range n {
		if p.rng.IntN(2) == 0 {
			p.requests = append(p.requests, p.simple())
		} else {
			p.requests = append(p.requests, p.extended())
		}
	}
	p.requests = append(p.requests, query("rollback"), query("select count(*), sum(a), md5(string_agg(b, '' order by a)) from t"))
	return p
}

func (p *pipeline) pick(list ...string) string { return list[p.rng.IntN(len(list))] }

func (p *pipeline) text() string {
	n := p.rng.IntN(100)
	return p.pick(
		"select 1", "select 1", "select 'x' || 2, null, 3.5", "", ";", "begin", "begin", "commit", "commit", "rollback", "savepoint s", "rollback to s", "release s",
		fmt.Sprintf("insert into t values (%d, 'row %d')", n, n), fmt.Sprintf("insert into t values (%d, repeat('b', %d)) on conflict do nothing", n, 10*n),
		fmt.Sprintf("update t set b = b || '!' where a = %d", n), fmt.Sprintf("delete from t where a = %d returning b", n),
		"select a, b from t order by a", fmt.Sprintf("select repeat('y', %d)", 50*n), fmt.Sprintf("select g, repeat('z', %d) from generate_series(1, %d) g", n, n),
		"select 1/0", "select * from missing", "selec", "do $$ begin raise notice 'noticed'; end $$", "do $$ begin raise warning 'warned'; end $$",
		"set extra_float_digits = 1", "set application_name = 'a'", "set application_name = 'b'", "show work_mem", "listen l", "unlisten *",
		"declare c cursor for select g from generate_series(1, 9) g", "fetch 3 from c", "close c", "truncate t", "select '/* '' */' -- comment",
		"set client_min_messages = warning", "set client_min_messages = notice", "prepare q as select 5", "execute q", "deallocate q",
		"select pg_sleep(0.002)", fmt.Sprintf("select '%s'", strings.Repeat("w", p.rng.IntN(3000))),
	)
}

// simple returns a Query, perhaps of several statements, or a COPY followed by its data, or a function call.
func (p *pipeline) simple() []byte {
	switch p.rng.IntN(14) {
	case 0:
		return query(p.text() + ";" + p.text() + ";" + p.text())
	case 1:
		return query("copy t to stdout")
	case 2:
		b := query("copy t from stdin")
		for range p.rng.IntN(4) {
			n := 100 + p.rng.IntN(1000)
			b = pgwire.AppendMessage(b, 'd', fmt.Appendf(nil, "%d\tcopied\n", n))
		}
		if p.rng.IntN(4) == 0 {
			return pgwire.AppendMessage(b, 'f', pgwire.AppendCString(nil, "no more"))
		}
		return pgwire.AppendMessage(b, 'c', nil)
	case 13: // pg_catalog.abs(int4) by the fast path
		b := binary.BigEndian.AppendUint32(nil, 1397)
		b = append(b, 0, 1, 0, 1, 0, 1, 0, 0, 0, 4)
		b = binary.BigEndian.AppendUint32(b, uint32(p.rng.IntN(1000)))
		return pgwire.AppendMessage(nil, 'F', append(b, 0, 1))
	}
	return query(p.text())
}

// extended returns messages of the extended protocol in any order that PostgreSQL answers with one ReadyForQuery,
// errors included.
func (p *pipeline) extended() []byte {
	name := func() string { return p.pick("", "", "", "n1", "n2") }
	portal := func() string { return p.pick("", "", "", "", "p1") }
	var b []byte
	add := func(typ byte, body ...[]byte) { b = pgwire.AppendMessage(b, typ, bytes.Join(body, nil)) }
	z := func(s string) []byte { return pgwire.AppendCString(nil, s) }
	if p.rng.IntN(2) == 0 { // as drivers do
		n := name()
		add('P', z(n), z(p.text()), []byte{0, 0})
		add('B', z(""), z(n), []byte{0, 0, 0, 0, 0, 0})
		add('D', []byte("P"), z(""))
		add('E', z(""), []byte{0, 0, 0, 0})
		return pgwire.AppendMessage(b, 'S', nil)
	}
	for range p.rng.IntN(8) {
		switch p.rng.IntN(7) {
		case 0, 1:
			add('P', z(name()), z(p.text()), []byte{0, 0})
		case 2:
			add('B', z(portal()), z(name()), []byte{0, 0, 0, 0, 0, 0})
		case 3:
			add('D', []byte(p.pick("P", "S")), z(name()))
		case 4:
			add('E', z(portal()), []byte{0, 0, 0, byte(p.rng.IntN(3))})
		case 5:
			add('C', []byte(p.pick("P", "S")), z(name()))
		case 6:
			add('H')
		}
	}
	return pgwire.AppendMessage(b, 'S', nil)
}

// run has the conversation, cut and timed by another seed, and returns the answers.
func (p *pipeline) run(t *testing.T, network, address string, timing uint64) (got []byte, closed bool) {
	t.Helper()
	conn, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	_, _ = conn.Write((&startup.Message{User: "postgres", Database: "postgres", Settings: []pgwire.Parameter{{Name: "application_name", Value: "p"}}}).Packet())
	readUntil(t, conn, 'Z')
	rng := rand.New(rand.NewPCG(timing, 7))
	patience := rng.IntN(3) // 0: it always waits for answers, 1: mostly, 2: hardly
	read := func(owed int) (closed bool) {
		for owed > 0 {
			typ, body, err := pgwire.ReadMessage(conn, 1<<20)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatalf("%s %s, timing %d: after %d bytes of answers: %v; the last %.300q", network, address, timing, len(got), err, got[max(0, len(got)-300):])
			}
			if err != nil {
				return true // PostgreSQL has closed the connection
			}
			if typ == 'T' {
				forgetTables(body)
			}
			got = pgwire.AppendMessage(got, typ, tempSchema.ReplaceAll(body, []byte("pg_temp_0")))
			owed -= b2i(typ == 'Z')
		}
		return false
	}
	owed := 0
	for _, request := range p.requests {
		for whole := rng.IntN(4) > 0; len(request) > 0; {
			n := len(request)
			if !whole {
				n = 1 + rng.IntN(n)
			}
			_, _ = conn.Write(request[:n]) // the end is learned by reading
			if request = request[n:]; rng.IntN(8) == 0 {
				time.Sleep(time.Duration(rng.IntN(1000)) * time.Microsecond)
			}
		}
		owed++
		if patience == 0 || patience == 1 && rng.IntN(4) > 0 || owed > 20 {
			if read(owed) {
				return got, true
			}
			owed = 0
		}
	}
	return got, read(owed)
}

// tempSchema is the schema of a session's temporary tables.
var tempSchema = regexp.MustCompile(`pg_temp_\d+`)

// forgetTables removes the numbers of tables from a RowDescription: each session has tables of its own.
func forgetTables(body []byte) {
	for rest := body[2:]; len(rest) > 0; {
		name := bytes.IndexByte(rest, 0)
		copy(rest[name+1:name+5], []byte{0, 0, 0, 0})
		rest = rest[name+1+18:]
	}
}

// offloadedPipelines is the share of the pipelines' sessions that the kernel carries for a while at least, and
// relayedRequests is how many requests of each it passes on its own on average. The others come back for most of what
// they say, and soon.
const (
	offloadedPipelines = 0.5
	relayedRequests    = 2
)

// The state machine of messages against its model, by random pipelines, on each data path.
func TestRandomPipelines(t *testing.T) {
	seeds := uint64(12)
	if os.Getenv("COTERIE_LONG") != "" {
		seeds = 250
	}
	server := newGroup(t, trusting).servers["a"]
	direct := filepath.Join(server.dir, ".s.PGSQL.5432")
	answers := make(map[uint64][]byte)
	for seed := range seeds {
		want, crashed := newPipeline(seed, 60).run(t, "unix", direct, seed)
		if !crashed {
			answers[seed] = want
			continue
		}
		t.Logf("seed %d: PostgreSQL has closed the connection", seed) // there are conversations that a version of it does not survive
		waitFor(t, "PostgreSQL is there again", func() bool {
			conn, err := server.connect(t.Context(), "postgres")
			if err == nil {
				_ = conn.Close(t.Context())
			}
			return err == nil
		})
	}
	for i, path := range []string{PathLoop, PathGoroutines, writingSingly, PathKernel} {
		t.Run(path, func(t *testing.T) {
			if path == PathKernel {
				offloadtest.Need(t)
			}
			pipelinesOn(t, path, answers, uint64(i)*1000)
		})
	}
}

// pipelinesOn has the conversations of these seeds by one path, which must give these answers.
func pipelinesOn(t *testing.T, path string, answers map[uint64][]byte, timing uint64) {
	t.Helper()
	logged := &bytes.Buffer{}
	t.Cleanup(func() { // when the group is gone
		if t.Failed() {
			t.Log(logged.String())
		}
	})
	g := newGroup(t, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(logged, nil)).With("path", path)
		c.Rules, c.singleWrites, c.NoKernelPath = trustAll, path == writingSingly, path != PathKernel
		if c.offloadAfter = 1; path == PathGoroutines {
			c.Loops = -1
		}
	})
	for _, seed := range slices.Sorted(maps.Keys(answers)) {
		want := answers[seed]
		got, _ := newPipeline(seed, 60).run(t, "tcp", g.rw, seed+timing)
		if !bytes.Equal(got, want) {
			n := 0
			for n < min(len(got), len(want)) && got[n] == want[n] {
				n++
			}
			t.Errorf("seed %d: %d bytes instead of %d, different from byte %d on:\n%.200q\ndirectly:\n%.200q", seed, len(got), len(want), n, got[max(0, n-40):], want[max(0, n-40):])
		}
	}
	if path != PathKernel {
		g.carried(t, path, 1)
		return
	}
	g.carried(t, path, offloadedPipelines)
	waitFor(t, "no session is left", func() bool { return g.srv.Stats().Open == 0 }) // the kernel's count is taken when one comes back
	st := g.srv.Stats()
	t.Logf("%d requests passed inside the kernel, of sessions that came back for %v", st.RelayedByKernel, st.KernelPath)
	if n := relayedRequests * len(answers); st.RelayedByKernel < uint64(n) {
		t.Errorf("the kernel passed %d requests of %d sessions, want at least %d", st.RelayedByKernel, len(answers), n)
	}
}
