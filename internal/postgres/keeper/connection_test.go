package keeper

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestPeersThatDieWithQuestionsOpen holds that the keeper lets go of a peer that died with more requests under way than
// it may have unanswered. There are places for few connections, and the keeper ends only when each of them has ended.
func TestPeersThatDieWithQuestionsOpen(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	socket := filepath.Join(n.run, SocketName)
	lines := fmt.Appendf(nil, `{"id":1,"op":%q,"reason":%q}`+"\n", opHello, strings.Repeat("x", 64<<10)) // then the others are read at once
	for i := range 500 {
		lines = fmt.Appendf(lines, `{"id":%d,"op":%q}`+"\n", 2+i, opStatus)
	}
	for range 8 * maxConns {
		nc, err := net.Dial("unix", socket)
		must(t, err)
		_ = nc.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = nc.Write(lines) // it fails once there is no place
		_ = nc.Close()
	}
	var c *Client
	n.wait0("a place for the next agent", func() (found bool) {
		var err error
		c, _, err = Dial(t.Context(), socket, "next")
		return err == nil
	})
	defer func() { _ = c.Close() }()
	must(t, c.Shutdown(t.Context()))
	n.wait0("the keeper to end", func() bool { return !alive(n.keeperPID()) })
}
