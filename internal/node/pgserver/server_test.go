package pgserver

import (
	"bufio"
	"net"
	"path/filepath"
	"testing"

	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

// TestSeenOfAKeeperThatIsGone holds that the state of a keeper that does not answer is nobody's news: each caller gets
// the error with it, also one that comes so soon after another that the keeper is not asked again.
func TestSeenOfAKeeperThatIsGone(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "k")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() { // a keeper that greets, and dies
		conn, err := l.Accept()
		if err != nil {
			return
		}
		if _, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
			_, _ = conn.Write([]byte(`{"id":1,"state":{}}` + "\n"))
		}
		_ = conn.Close()
	}()
	c, _, err := keeper.Dial(t.Context(), socket, "a-1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	s := &Server{Client: c}
	for i := range 3 {
		if _, err := s.Seen(); err == nil {
			t.Errorf("question %d: no error", i)
		}
	}
}
