package resume

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/replay"
)

func m(typ byte, body string) []byte { return pgwire.AppendMessage(nil, typ, []byte(body)) }

func join(b ...[]byte) []byte { return bytes.Join(b, nil) }

// lost as the last answer is the end of the server.
var lost = []byte("lost")

// serverThat returns a server that gives these answers, whatever it is sent. sent returns what that was.
func serverThat(t *testing.T, answers ...[]byte) (s Server, sent func() string) {
	t.Helper()
	near, far := net.Pipe()
	var got bytes.Buffer
	read, wrote := make(chan struct{}), make(chan struct{})
	go func() { defer close(read); _, _ = io.Copy(&got, far) }()
	go func() {
		defer close(wrote)
		said, ends := bytes.CutSuffix(join(answers...), lost)
		if _, err := far.Write(said); err == nil && ends {
			_ = far.Close()
		}
	}()
	end := func() { _, _ = near.Close(), far.Close(); <-read; <-wrote }
	t.Cleanup(end)
	return Server{Conn: near, In: bufio.NewReader(near)}, func() string { end(); return got.String() }
}

// row is a row of texts.
func row(columns ...string) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(columns)))
	for _, c := range columns {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(c))), c...)
	}
	return pgwire.AppendMessage(nil, 'D', b)
}

// status is the answer of a server that writes timeline 2 to the question for a transaction.
func status(text string) []byte {
	return join(m('T', "\x00\x00"), row(text, "000000020000000000000003", "", ""), m('C', "SELECT 1\x00"), m('Z', "I"))
}

// history is that of a server that leads on timeline 2, and had replayed all numbers below 800 then.
var history = []ag.TimelineEntry{{TLI: 1}, {TLI: 2, Parent: 1, Xids: ag.Xids{Kept: 800, Lost: 900}}}

// A server that gives the session back while it is made again refuses it for the moment.
func TestGivenBackWhileItIsMadeAgain(t *testing.T) {
	s, _ := serverThat(t, m(continuity.GiveBack, "2"))
	if _, _, err := s.Restore(&continuity.State{}, nil, nil, false); err == nil || errors.Is(err, ErrNotTheSame) {
		t.Errorf("%v; it is to be tried again", err)
	}
}

// A server that is lost can be another one; one that does not let the state be made cannot.
func TestRestoreFails(t *testing.T) {
	s, _ := serverThat(t, lost)
	if _, _, err := s.Restore(&continuity.State{}, nil, nil, false); err == nil || errors.Is(err, ErrNotTheSame) {
		t.Errorf("a server that is lost: %v", err)
	}
	s, _ = serverThat(t, m('E', "SERROR\x00VERROR\x00C42501\x00Mpermission denied\x00\x00"), m('Z', "I"))
	if _, _, err := s.Restore(&continuity.State{}, nil, nil, false); !errors.Is(err, ErrNotTheSame) || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a server that tells nothing: %v", err)
	}
}

// A session in a block that has failed is made by two requests.
func TestFailBlock(t *testing.T) {
	s, sent := serverThat(t, m('C', "BEGIN\x00"), m('Z', "T"), m('E', "SERROR\x00VERROR\x00C3B001\x00\x00"), m('Z', "E"))
	if err := s.FailBlock(); err != nil {
		t.Error(err)
	}
	if got, want := sent(), string(join(m('Q', "begin\x00"), m('Q', LostBlock+"\x00"))); got != want {
		t.Errorf("sent %q, want %q", got, want)
	}
}

// The guard is up when the server has taken it. A COMMIT goes behind a Query and ends the block in which it is.
func TestGuard(t *testing.T) {
	inBatch := join(m('1', ""), m('2', ""), row("on"), m('C', "SELECT 1\x00"), m('3', ""))
	inBlock := join(m('C', "BEGIN\x00"), m('Z', "T"))
	for typ, tt := range map[byte]struct{ answer, behind []byte }{'P': {inBatch, nil}, 'B': {inBatch, nil}, 'Q': {inBlock, m('Q', "COMMIT\x00")}} {
		s, _ := serverThat(t, tt.answer)
		if behind, err := s.Guard(typ); err != nil || !bytes.Equal(behind, tt.behind) {
			t.Errorf("%c: behind it goes %q, %v", typ, behind, err)
		}
		for name, answer := range map[string][]byte{"refused": m('E', "SERROR\x00VERROR\x00C42501\x00Mno\x00\x00"), "lost": join(tt.answer[:len(tt.answer)-6], lost)} {
			s, _ := serverThat(t, answer)
			if _, err := s.Guard(typ); err == nil {
				t.Errorf("%c, %s: there is no guard, and that was not noticed", typ, name)
			}
		}
	}
}

// The client of a COMMIT is told what is proved, and nothing else.
func TestCommit(t *testing.T) {
	done := join(m('C', "COMMIT\x00"), m('Z', "I"))
	for _, c := range []struct {
		name    string
		xid     uint64
		doubt   Doubt
		answer  []byte
		outcome indoubt.Outcome
		told    string // what it contains; "": nothing, the session does not go on
	}{
		{"committed", 741, Doubt{Timelines: history}, status("committed"), indoubt.Committed, string(done)},
		{"not committed", 741, Doubt{Timelines: history}, status("aborted"), indoubt.NotCommitted, "C40001"},
		{"not committed, and not executed again", 741, Doubt{Timelines: history, Unreplayed: "it is too long"}, status("aborted"), indoubt.NotCommitted, "it is too long"},
		{"a number that was given again", 850, Doubt{Timelines: history}, status("committed"), indoubt.Unknown, ""},
		{"nothing is known", 741, Doubt{}, status("committed"), indoubt.Unknown, ""},
		{"wrote nothing", 0, Doubt{}, nil, indoubt.Committed, string(done)},
		{"wrote nothing, and has read", 0, Doubt{Reads: true}, nil, indoubt.Unknown, ""},
		{"wrote nothing here", 0, Doubt{Extensions: []string{"postgres_fdw"}}, nil, indoubt.Unknown, ""},
		{"wrote nothing that is known", 0, Doubt{Extensions: []string{"of_somebody"}}, nil, indoubt.Unknown, ""},
	} {
		commit := indoubt.New(done, 1)
		commit.Xid = c.xid
		s, _ := serverThat(t, c.answer)
		p, err := s.Commit(commit, c.doubt)
		if p.Outcome != c.outcome || !strings.Contains(string(p.Told), c.told) || p.Chained {
			t.Errorf("%s: %+v", c.name, p)
		}
		if ends := c.told == ""; ends != errors.Is(err, ErrNotTheSame) || ends && p.Told != nil {
			t.Errorf("%s: %q, %v", c.name, p.Told, err)
		}
	}
	s, _ := serverThat(t, lost)
	commit := indoubt.New(done, 1)
	commit.Xid = 741
	if _, err := s.Commit(commit, Doubt{Timelines: history}); err == nil || errors.Is(err, ErrNotTheSame) {
		t.Errorf("a server that is lost: %v; another one may tell", err)
	}
}

// Behind COMMIT AND CHAIN the next transaction is begun before the client is told.
func TestChain(t *testing.T) {
	value := func(s string) []byte { return m('V', "\x00\x00\x00"+string(rune(len(s)))+s) }
	for _, begun := range []bool{true, false} {
		commit := indoubt.New(join(m('C', "COMMIT\x00"), m('Z', "T")), 1)
		for _, v := range []string{"741", "serializable", "off", "off"} {
			_, _ = commit.Swallow(value(v)), commit.Swallow(m('Z', "T"))
		}
		next := join(m('C', "BEGIN\x00"), m('Z', "T"))
		if !begun {
			next = join(m('E', "SERROR\x00VERROR\x00C57014\x00Mcanceled\x00\x00"), m('Z', "I"))
		}
		s, sent := serverThat(t, status("committed"), next)
		p, err := s.Commit(commit, Doubt{Timelines: history})
		if !commit.Known() || begun != (err == nil) || p.Chained != begun || begun != (p.Told != nil) {
			t.Errorf("begun %v: %+v, %v", begun, p, err)
		}
		if got := sent(); !strings.Contains(got, "begin isolation level serializable, read write, not deferrable") {
			t.Errorf("the next transaction was not begun as the one before it: %q", got)
		}
	}
}

// A change is answered, executed again, or ends the session, by what is proved of it.
func TestChange(t *testing.T) {
	answer := join(m('2', ""), m('C', "UPDATE 1\x00"))
	for _, c := range []struct {
		name       string
		status     string
		answer     []byte // of the lost server, as far as it has come
		passed     bool   // the client has got a part of it
		twice      bool
		extensions []string
		told       string
		repeat     bool
		ends       bool
	}{
		{"committed", "committed", answer, false, false, nil, "UPDATE 1", false, false},
		{"committed, and the answer is lost", "committed", m('2', ""), false, false, nil, "", false, true},
		{"not committed", "aborted", answer, false, false, nil, "", true, false},
		{"not committed for the second time", "aborted", answer, false, true, nil, "C40001", false, false},
		{"not committed, and the client has got a part", "aborted", answer, true, false, nil, "C40001", false, false},
		{"not committed, and acts elsewhere", "aborted", answer, false, false, []string{"of_somebody"}, "C40001", false, false},
		{"unknown", "in progress", answer, false, false, nil, "", false, true},
	} {
		w := lone.NewWrite(false)
		for b := join(row("741 000000010000000000000001"), m('3', ""), c.answer); len(b) > 0; {
			n := 1 + int(binary.BigEndian.Uint32(b[1:]))
			_, _ = w.Take(b[0], b[:n])
			b = b[n:]
		}
		if c.passed {
			w.Pass()
		}
		s, _ := serverThat(t, status(c.status))
		p, err := s.Change(w, Doubt{Timelines: history, Extensions: c.extensions}, c.twice)
		if c.ends != errors.Is(err, ErrNotTheSame) || errors.Is(err, ErrAnswerLost) != (c.ends && c.status == "committed") || p.Repeat != c.repeat || c.told == "" != (p.Told == nil) || !strings.Contains(string(p.Told), c.told) {
			t.Errorf("%s: %+v, %v", c.name, p, err)
		}
	}
}

// A transaction is executed again to its end if each answer is the same.
func TestExecute(t *testing.T) {
	begin, read := m('Q', "begin\x00"), m('Q', "select 1\x00")
	begun, one := join(m('C', "BEGIN\x00"), m('Z', "T")), join(row("1"), m('C', "SELECT 1\x00"), m('Z', "T"))
	for _, c := range []struct {
		name       string
		answers    []byte
		extensions []string
		want       error
		requests   int
	}{
		{"the same", join(begun, m('A', "\x00\x00\x00\x07c\x00\x00"), one), nil, nil, 2},
		{"another row", join(begun, row("2"), m('C', "SELECT 1\x00"), m('Z', "T")), nil, TriedError{replay.Differs}, 2},
		{"a server that is lost", join(begun, lost), nil, ErrLost, 2},
		{"a database that acts elsewhere", nil, []string{"of_somebody"}, TriedError{replay.Outside([]string{"of_somebody"})}, 0},
	} {
		log := replay.New(new(replay.Memory), nil)
		for _, r := range []struct {
			request, answer []byte
			first           bool
		}{{begin, begun, true}, {read, one, false}} {
			log.Sent(r.request, true, true, r.first)
			for b := r.answer; len(b) > 0; {
				n := 1 + int(binary.BigEndian.Uint32(b[1:]))
				log.Answered(b[0], b[:n], true)
				b = b[n:]
			}
		}
		s, _ := serverThat(t, c.answers)
		run, err := s.Execute(context.Background(), log, c.extensions)
		if err != c.want || run.Requests() != c.requests { //nolint:errorlint // every error is a TriedError
			t.Errorf("%s: %d requests, %v", c.name, run.Requests(), err)
		}
		if c.want == nil && len(run.Aside) == 0 {
			t.Errorf("%s: the notification is lost", c.name)
		}
	}
}

// An execution that is waited for too long ends.
func TestExecuteInTime(t *testing.T) {
	log := replay.New(new(replay.Memory), nil)
	log.Sent(m('Q', "begin\x00"), true, true, true)
	log.Answered('C', m('C', "BEGIN\x00"), true)
	log.Answered('Z', m('Z', "T"), true)
	near, far := net.Pipe()
	defer func() { _, _ = near.Close(), far.Close() }()
	read := make(chan struct{})
	go func() { defer close(read); _, _ = io.Copy(io.Discard, far) }()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := (Server{Conn: near, In: bufio.NewReader(near)}).Execute(ctx, log, nil); err != errLate { //nolint:errorlint // as above
		t.Error(err)
	}
	_ = near.Close()
	<-read
}
