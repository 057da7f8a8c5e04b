package opening

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

func m(typ byte, body string) []byte { return pgwire.AppendMessage(nil, typ, []byte(body)) }

// start opens a session on a server that gives that answer and ends.
func start(t *testing.T, packet, answer []byte) (g Greeting, sent []byte, err error) {
	t.Helper()
	near, far := net.Pipe()
	var got bytes.Buffer
	read, wrote := make(chan struct{}), make(chan struct{})
	go func() { defer close(read); _, _ = io.Copy(&got, far) }()
	go func() {
		defer close(wrote)
		if _, err := far.Write(answer); err == nil {
			_ = far.Close()
		}
	}()
	g, err = Start(near, bufio.NewReader(near), packet, "a")
	_, _ = near.Close(), far.Close()
	<-read
	<-wrote
	return g, got.Bytes(), err
}

// A session is opened with what the server has said, but that it asks for nothing.
func TestStart(t *testing.T) {
	key := m('K', "\x00\x00\x00\x07abcd")
	status := m('S', "server_version\x0018.0\x00")
	g, _, err := start(t, []byte("a packet"), bytes.Join([][]byte{m('R', "\x00\x00\x00\x00"), status, key, m('Z', "I")}, nil))
	if err != nil {
		t.Fatal(err)
	}
	if want := bytes.Join([][]byte{status, key, m('Z', "I")}, nil); !bytes.Equal(g.Bytes, want) {
		t.Errorf("greeting %q, want %q", g.Bytes, want)
	}
	if g.PID() != 7 || string(g.Key[4:]) != "abcd" || !bytes.Equal(g.Bytes[g.KeyAt:g.KeyAt+8], g.Key[:]) {
		t.Errorf("%+v", g)
	}
	c := g.Copy()
	binary.BigEndian.PutUint32(c.Bytes[c.KeyAt:], 9)
	if binary.BigEndian.Uint32(g.Bytes[g.KeyAt:]) != 7 {
		t.Error("a copy shares its bytes")
	}
}

// A refusal of the server is the client's error if it is final. Anything else may be tried again.
func TestStartFails(t *testing.T) {
	ok, key := m('R', "\x00\x00\x00\x00"), m('K', "\x00\x00\x00\x07abcd")
	refusal := func(code string) []byte { return m('E', "SFATAL\x00C"+code+"\x00Mno\x00Dbecause\x00Htry\x00\x00") }
	for _, c := range []struct {
		name   string
		answer []byte
		code   string // of the client's error; "": it is tried again
		says   string
	}{
		{"no such database", append(bytes.Clone(ok), refusal("3D000")...), "3D000", "no"},
		{"starting up", refusal(pgwire.StateCannotConnect), "", "no"},
		{"a password is asked for", m('R', "\x00\x00\x00\x03"), "", "asks for a password"},
		{"authentication is cut", m('R', "\x00"), "", "asks for a password"},
		{"no cancel key", bytes.Join([][]byte{ok, m('Z', "I")}, nil), "", "no cancel key"},
		{"a long cancel key", bytes.Join([][]byte{ok, m('K', "\x00\x00\x00\x07"+strings.Repeat("k", 32))}, nil), "", "cancel key of 36 bytes"},
		{"it is lost", bytes.Join([][]byte{ok, key}, nil), "", "EOF"},
		{"it says too much", bytes.Repeat(m('N', strings.Repeat("x", 1<<10)), pgwire.MaxControl>>10+2), "", "too long"},
	} {
		_, sent, err := start(t, []byte("a packet"), c.answer)
		bad, final := pgwire.AsError(err)
		if err == nil || final != (c.code != "") || final && bad.Code != c.code || !strings.Contains(err.Error(), c.says) && (!final || bad.Message != c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
		if final && (bad.Detail != "because" || bad.Hint != "try") {
			t.Errorf("%s: %+v", c.name, bad)
		}
		if string(sent) != "a packet" {
			t.Errorf("%s: sent %q", c.name, sent)
		}
	}
	if _, sent, err := start(t, make([]byte, 10_001), nil); err == nil || len(sent) > 0 {
		t.Errorf("a packet of 10 kB is sent: %v", err)
	}
}
