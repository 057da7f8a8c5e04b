package e2e

import (
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// cancelsAcrossNodes cancels the statement of a client of one listener through another listener, as a client does
// behind a name with several addresses. It does so on each data path, for a session of the listener's own server and
// for one of another node's server.
func cancelsAcrossNodes(t *testing.T, g *group) {
	g.ready(t)
	u, err := url.Parse(g.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	listeners := strings.Split(u.Host, ",")
	if len(listeners) < 2 {
		t.Fatalf("one listener: %s", u.Host)
	}
	for i, at := range listeners {
		for j, by := range listeners {
			for _, mode := range []string{"disable", "require"} {
				via := *u
				via.Host, via.RawQuery = at, "sslmode="+mode
				conn, err := pgx.Connect(t.Context(), via.String())
				if err != nil {
					t.Fatalf("listener %d: %v", i, err)
				}
				ended := make(chan error, 1)
				go func() {
					_, err := conn.Exec(t.Context(), "select pg_sleep(600)")
					ended <- err
				}()
				var refused *pgconn.PgError
				err = cancelUntil(by, &pgproto3.CancelRequest{ProcessID: conn.PgConn().PID(), SecretKey: conn.PgConn().SecretKey()}, ended)
				if !errors.As(err, &refused) || refused.Code != "57014" {
					t.Errorf("a session at listener %d (sslmode=%s), cancelled at listener %d, ended with %v", i, mode, j, err)
				}
				_ = conn.Close(t.Context())
			}
		}
	}
}

// cancelUntil repeats the request until the statement has ended: a request that arrives before the statement has
// nothing to cancel.
func cancelUntil(address string, request *pgproto3.CancelRequest, ended <-chan error) error {
	packet, err := request.Encode(nil)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		conn, err := net.DialTimeout("tcp", address, patience)
		if err != nil {
			return err
		}
		_ = conn.SetDeadline(deadline)
		_, _ = conn.Write(packet)
		_, _ = io.Copy(io.Discard, conn) // it is over when the listener closes
		_ = conn.Close()
		select {
		case err := <-ended:
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
	return errors.New("not at all")
}
