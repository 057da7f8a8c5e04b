package giveback

import (
	"bytes"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
)

// stream returns the two ends of a connection of which each direction ends by itself.
func stream(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if client, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	return client, server
}

// takes reads the first message as a relay does, and takes the session with ahead of the bytes behind it.
func takes(t *testing.T, client net.Conn, ahead int, asked []byte) (*continuity.State, []byte, error) {
	t.Helper()
	if typ, body, err := pgwire.ReadMessage(client, 100); typ != Message || string(body) != Version || err != nil {
		t.Fatalf("%q %q: %v", typ, body, err)
	}
	given := make([]byte, ahead)
	if _, err := io.ReadFull(client, given); err != nil {
		t.Fatal(err)
	}
	return Take(client, client, given, asked)
}

// A session comes back with its state, and with every byte that was not forwarded: those that the other node had read,
// and those that were on their way. The question of the node itself is not among them.
func TestGiveAndTake(t *testing.T) {
	state := &continuity.State{Role: "r\xff", Statements: map[string]continuity.Statement{"s": {Text: "select '\xff'"}}}
	question := []byte("a question")
	for _, c := range []struct {
		name, read, sent string
		asked            []byte
		want             string
	}{
		{"nothing", "", "", nil, ""},
		{"a request", "first ", "second", nil, "first second"},
		{"a question", "", "a question", question, ""},
		{"a question that was read", "a question", " and a request", question, " and a request"},
		{"a question that was read in part", "a quest", "ion and more", question, " and more"},
	} {
		for _, ahead := range []int{0, 3} {
			client, server := stream(t)
			if _, err := client.Write([]byte(c.sent)); err != nil {
				t.Fatal(err)
			}
			given := make(chan struct{})
			go func() { defer close(given); Give(server, state, []byte(c.read)); _ = server.Close() }()
			st, rest, err := takes(t, client, ahead, c.asked)
			<-given
			if err != nil || string(rest) != c.want || st.Role != state.Role || st.Statements["s"].Text != state.Statements["s"].Text {
				t.Errorf("%s, %d: %+v, %q, %v", c.name, ahead, st, rest, err)
			}
		}
	}
}

// A session that does not come whole is not taken.
func TestTakeFails(t *testing.T) {
	m := func(body string) []byte { return pgwire.AppendMessage(nil, Message, []byte(body)) }
	given := func(rest string) []byte {
		client, server := stream(t)
		go func() { Give(server, &continuity.State{}, []byte(rest)); _ = server.Close() }()
		_ = client.(*net.UnixConn).CloseWrite() //nolint:forcetypeassert // stream has made it
		all, _ := io.ReadAll(client)
		return bytes.TrimPrefix(all, m(Version))
	}
	whole := given("rest")
	for _, c := range []struct {
		name  string
		says  []byte
		asked string
		why   string
	}{
		{"nothing", nil, "", "read its state"},
		{"a state that is none", append(m("x"), m("")...), "", "read its state"},
		{"another message", pgwire.AppendMessage(nil, 'E', nil), "", "message 'E'"},
		{"no rest", whole[:len(whole)-len(m("rest"))], "", "read what was not forwarded"},
		{"a part of the rest", whole[:len(whole)-1], "", "read what was not forwarded"},
		{"the question is not in it", whole, "question", "a question to it was lost"},
	} {
		client, server := stream(t)
		go func() { _, _ = server.Write(c.says); _ = server.Close() }()
		var asked []byte
		if c.asked != "" {
			asked = []byte(c.asked)
		}
		if _, _, err := Take(client, client, nil, asked); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if all := given(strings.Repeat("x", maxGivenBack)); bytes.HasSuffix(all, []byte("xxx")) {
		t.Error("more is given back than is taken")
	}
}
