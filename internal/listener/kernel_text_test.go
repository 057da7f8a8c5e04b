package listener

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/offload"
	"github.com/coteriedb/coterie/internal/listener/offload/offloadtest"
	"github.com/coteriedb/coterie/internal/listener/sessionstate"
)

// kernelPath is a path through the kernel between a client and a server of a test. The test is the loop between them.
type kernelPath struct {
	t              *testing.T
	path           *offload.Path
	session        *offload.Session
	client, server net.Conn
	middle         int // the client's socket, as the loop has it
}

func newKernelPath(t *testing.T) *kernelPath {
	t.Helper()
	offloadtest.Need(t)
	k := &kernelPath{t: t}
	var err error
	k.path, err = offload.New(offload.Config{Woken: func(uint32) {}})
	must(t, err)
	t.Cleanup(k.path.Close)
	door, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = door.Close() }()
	k.client, err = net.Dial("tcp", door.Addr().String())
	must(t, err)
	middle, err := door.Accept()
	must(t, err)
	file, err := middle.(*net.TCPConn).File()
	must(t, err)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	end := os.NewFile(uintptr(pair[1]), "server")
	k.server, err = net.FileConn(end)
	must(t, err)
	sender, err := offload.SenderCookie(pair[0])
	must(t, err)
	k.middle = int(file.Fd())
	k.session, err = k.path.Add(k.middle, pair[0], sender)
	must(t, err)
	for _, c := range []net.Conn{k.client, k.server} {
		_ = c.SetDeadline(time.Now().Add(5 * time.Minute))
	}
	t.Cleanup(func() {
		k.path.Remove(k.session)
		for _, c := range []io.Closer{k.client, k.server, middle, file, end} {
			_ = c.Close()
		}
		_ = unix.Close(pair[0])
		_ = unix.Close(k.session.Returns)
	})
	return k
}

// passes reports whether the kernel passes the request on to the server.
func (k *kernelPath) passes(request []byte) bool {
	k.t.Helper()
	s := k.session.Slot
	s.DownLimit, s.Downs = offload.MaxUnread, s.Ups // the last one counts as answered
	s.UpTaken, s.DownTaken = atomic.LoadUint64(&s.UpLeft), atomic.LoadUint64(&s.DownLeft)
	ups := s.Ups
	atomic.StoreUint32(&s.Armed, 1)
	_, err := k.client.Write(request)
	must(k.t, err)
	got := make([]byte, len(request))
	for atomic.LoadUint64(&s.Ups) == ups && atomic.LoadUint64(&s.UpLeft) == s.UpTaken {
		time.Sleep(5 * time.Microsecond)
	}
	s.Disarm()
	if s.Ups != ups {
		_, err = io.ReadFull(k.server, got)
		must(k.t, err)
		return true
	}
	for n := 0; n < len(got); {
		m, err := unix.Read(k.middle, got[n:])
		if err == unix.EAGAIN {
			time.Sleep(5 * time.Microsecond)
			continue
		}
		must(k.t, err)
		n += m
	}
	return false
}

// parses returns a request of the extended protocol with these texts.
func parses(texts ...string) (request []byte) {
	for _, sql := range texts {
		request = pgwire.AppendMessage(request, 'P', append(pgwire.AppendCString(pgwire.AppendCString(nil, ""), sql), 0, 0))
		request = pgwire.AppendMessage(request, 'B', make([]byte, 8))
		request = pgwire.AppendMessage(request, 'E', make([]byte, 5))
	}
	return pgwire.AppendMessage(request, 'S', nil)
}

// TestKernelPassesNoTextThatMatters: the kernel passes on only texts that would change nothing in what is followed of a
// session, in any protocol form; and it passes on those of ordinary applications.
func TestKernelPassesNoTextThatMatters(t *testing.T) {
	k := newKernelPath(t)
	for _, sql := range []string{
		"", "BEGIN", "commit;", "END; ", "select 1", "  \n\tSELECT 1", "(select 1) union (select 2)", "select abalance from pgbench_accounts where aid = 1;",
		"UPDATE pgbench_branches SET bbalance = bbalance + -5 WHERE bid = 1;\n", "insert into t (a, b) values ('x', now()) returning id",
		"select count(*), max(x) from reset_counts where setting = 'loaded'", "select account_code, product_config, in_order, best_of from seeds", "with a as (select 1) select * from a /* route='/orders' */",
		"select 1 -- a remark", "values (1)", "select current_date, current_user", "delete from settings where id = 5", "SELECT U&\"a", "rollback to savepoint s",
		"select 'é', \"Ünï\" from t", "select lower(name) from offsets", "execute p(1)", "EXPLAIN select 1", "show search_path", "select '{\"a\": [1]}'::jsonb",
	} {
		want := sql != `SELECT U&"a`
		if k.passes(query(sql)) != want {
			t.Errorf("passes: %v: %q", !want, sql)
		}
		if extended := want && sql != "" && isLetter(sql[0]); k.passes(parses(sql)) != extended || k.passes(parses("select 2", sql)) != extended {
			t.Errorf("passes: %v, extended: %q", !extended, sql)
		}
	}
	rounds := 200_000
	if testing.Short() {
		rounds = 20_000
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 1))
	passed := 0
	for range rounds {
		sql := textThatMatters(random)
		forms := [][]byte{query(sql), parses(sql), parses("select 2", sql)}
		form := random.IntN(len(forms))
		if len(forms[form]) > 1000 || !k.passes(forms[form]) {
			continue
		}
		passed++
		var tracker sessionstate.Tracker
		read, _, _ := strings.Cut(sql, "\x00") // PostgreSQL refuses what is behind it
		tracker.Text(append([]byte(read), 0), true, true)
		if tracker.Why() != "" || len(tracker.Names()) > 0 {
			t.Fatalf("seed %d, form %d: the kernel has passed %q, which matters: %q %q", seed, form, sql, tracker.Why(), tracker.Names())
		}
		tracker.Reported("TimeZone")
		if tracker.Turned() {
			t.Fatalf("seed %d, form %d: the kernel has passed %q, which may have prepared a statement", seed, form, sql)
		}
	}
	if passed < rounds/20 {
		t.Errorf("only %d of %d passed", passed, rounds)
	}
	t.Logf("%d of %d passed", passed, rounds)
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// textThatMatters returns a text of words that may matter, in any spelling, between others.
func textThatMatters(random *rand.Rand) string {
	words := []string{
		"set", "reset", "load", "prepare", "do", "seed", "setseed", "set_config", "currval", "lastval", "dblink_connect", "dblink_connect_u",
		"pg_replication_origin_session_setup", "pg_backup_start", "select", "update", "local", "session", "my.x", "'my.x'", "a.b", "x", "1", "--", "/*", "*/", "(", ")", ";", ";",
		",", "=", "'", `"`, `U&"`, `&"`, "uescape", "$$", "begin", "alter", "commit", "\x80", "é", "\x00",
	}
	gaps := []string{"", "", " ", " ", " ", "\n", "\t", "\r\n", "\f", "\v", "\u00a0", "."}
	var b strings.Builder
	for range 1 + random.IntN(9) {
		w := words[random.IntN(len(words))]
		switch random.IntN(6) {
		case 0:
			w = strings.ToUpper(w)
		case 1:
			w = strings.ToUpper(w[:1]) + w[1:]
		case 2:
			w = fmt.Sprintf("%q", w)
		case 3:
			at := random.IntN(len(w))
			w = w[:at] + string(rune(random.IntN(256))) + w[at:]
		}
		if w == "\x00" && random.IntN(4) > 0 {
			continue
		}
		b.WriteString(gaps[random.IntN(len(gaps))] + w)
	}
	return b.String()
}

// TestKernelPassesNoOddRequest: what is at the edge of what the program looks at, or no whole text, is left to the loop
// if it may matter.
func TestKernelPassesNoOddRequest(t *testing.T) {
	k := newKernelPath(t)
	for size := 1010; size <= 1030; size++ { // of the request
		for end, passes := range map[string]bool{"'": true, "';": true, "' ; ": true, "';x": false, "',setseed(1)": false, "',pg_backup_start('x')": false, "'/*(": false, `',u&"`: false} {
			sql := "select '"
			sql += strings.Repeat("x", size-len(query(sql+end))) + end
			if got := k.passes(query(sql)); got != (passes && size <= 1024) {
				t.Errorf("a request of %d bytes that ends with %q passes: %v", size, end, got)
			}
			extended := parses(sql)
			extended = append(extended[:len(extended)-5], parses("select 2")...)
			if got := k.passes(extended); got != (passes && len(extended) <= 1024) {
				t.Errorf("one of %d bytes in two texts, of which the first ends with %q, passes: %v", len(extended), end, got)
			}
		}
	}
	message, sync := pgwire.AppendMessage, pgwire.AppendMessage(nil, 'S', nil)
	function := message(nil, 'F', make([]byte, 10))
	for name, request := range map[string][]byte{
		"no body": message(nil, 'Q', nil), "no end": message(nil, 'Q', []byte("select 1")), "no end, and more": append(message(nil, 'P', []byte("\x00set my.x = 1")), sync...),
		"a function": function, "two queries": append(query("select 1"), query("select 2")...), "a query in a batch": append(parses("select 1")[:20], query("select 2")...),
		"a named statement": append(message(nil, 'P', []byte("p\x00select 1\x00\x00\x00")), sync...), "a named portal": append(message(nil, 'B', []byte("p\x00\x00\x00\x00\x00\x00\x00\x00")), sync...),
		"a Bind that is too short": append(message(nil, 'B', []byte{0}), sync...), "copied": append(message(nil, 'd', []byte("x")), sync...), "no Sync": parses("select 1")[:30],
		"behind the end of a Parse": append(message(nil, 'P', []byte("\x00;set my.x = 1")), append(message(nil, 'P', []byte("\x00select 1\x00\x00\x00")), sync...)...),
		"nine messages":             append(bytes.Repeat(message(nil, 'D', []byte{'P', 0}), 8), sync...),
	} {
		if k.passes(request) {
			t.Errorf("%s: it passes", name)
		}
	}
	if behind := message(nil, 'Q', []byte("select 1\x00set my.x = 1\x00")); !k.passes(behind) { // PostgreSQL refuses it
		t.Error("bytes behind a text are looked at")
	}
}
