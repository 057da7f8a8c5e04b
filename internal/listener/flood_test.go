package listener

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// In these tests one address does without a password what a listener has to do for everybody. Other clients are served meanwhile.

// from dials from another address of the loopback network.
func (g *group) from(t *testing.T, ip net.IP, address string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: ip}}
	conn, err := d.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

var flooder = net.IPv4(127, 0, 0, 2)

// TestHostileStartupPackets sends the loop that carries a session hundreds of startup packets a second, as expensive ones as
// there are. The session goes on.
func TestHostileStartupPackets(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules, c.Loops, c.NoKernelPath = trustAll, min(1, c.Loops+1), true })
	if g.srv.cfg.Loops < 1 {
		t.Skip("no loop carries sessions here")
	}
	conn := g.rawDial(g.rw)
	_, _ = conn.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
	readUntil(t, conn, 'Z')
	var many []pgwire.Parameter
	for i := range 2171 {
		many = append(many, pgwire.Parameter{Name: strconv.FormatInt(int64(i), 36)})
	}
	packet := pgwire.StartupMessage(append([]pgwire.Parameter{{Name: "user", Value: "u"}}, many...)...)
	stop := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			bad := g.from(t, flooder, g.rw)
			_, _ = bad.Write(packet)
			flood.Go(func() { _ = fate(t, bad) })
		}
	})
	queries := 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); queries++ {
		_, _ = conn.Write(pgwire.AppendMessage(nil, 'Q', []byte("select 1\x00")))
		readUntil(t, conn, 'Z')
	}
	close(stop)
	flood.Wait()
	t.Logf("%d queries in 2 s of a flood", queries)
	if queries < 300 {
		t.Errorf("%d queries in 2 s of a flood", queries)
	}
}

var _ = bytes.Contains
var _ = fmt.Sprint
