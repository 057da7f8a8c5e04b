package listenerbench

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// recorded answers requests of the extended protocol as a server has answered the same bytes before. It asks the server
// once for each.
type recorded struct {
	server string // its Unix socket
	mu     sync.Mutex
	known  map[string][]byte // guarded by mu
	served int               // guarded by mu
}

// count returns how many requests were answered.
func (r *recorded) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.served
}

// serve answers the requests on a connection until it ends.
func (r *recorded) serve(conn net.Conn) {
	_ = conn.SetDeadline(time.Time{})
	for {
		var asked []byte
		for {
			typ, body, err := pgwire.ReadMessage(conn, pgwire.MaxControl)
			if err != nil {
				return
			}
			if asked = pgwire.AppendMessage(asked, typ, body); typ == 'S' {
				break
			}
		}
		answer, err := r.answer(asked)
		if err != nil {
			_ = conn.Close()
			return
		}
		if _, err := conn.Write(answer); err != nil {
			return
		}
		r.mu.Lock()
		r.served++
		r.mu.Unlock()
	}
}

func (r *recorded) answer(asked []byte) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a, ok := r.known[string(asked)]; ok {
		return a, nil
	}
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(context.Background(), "unix", r.server)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := conn.Write(appStartup()); err != nil {
		return nil, err
	}
	if _, err := untilReady(conn); err != nil {
		return nil, err
	}
	if _, err := conn.Write(asked); err != nil {
		return nil, err
	}
	a, err := untilReady(conn)
	if err != nil {
		return nil, err
	}
	if r.known == nil {
		r.known = map[string][]byte{}
	}
	r.known[string(asked)] = a
	return a, nil
}

// untilReady reads messages up to a ReadyForQuery.
func untilReady(conn net.Conn) (all []byte, err error) {
	for {
		typ, body, err := pgwire.ReadMessage(conn, pgwire.MaxControl)
		if err != nil {
			return nil, err
		}
		all = pgwire.AppendMessage(all, typ, body)
		switch typ {
		case 'E':
			return nil, errors.New(pgwire.ErrorField(body, 'M'))
		case 'Z':
			return all, nil
		}
	}
}

// appStartup is the startup packet of the role app.
func appStartup() []byte {
	return pgwire.StartupMessage(pgwire.Parameter{Name: "user", Value: "app"}, pgwire.Parameter{Name: "database", Value: "postgres"})
}
