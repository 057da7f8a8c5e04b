package endpoint

import (
	"context"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"
)

// relayBuffers hold what is on its way through a relay; four TLS records.
var relayBuffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// Relay copies bytes both ways until both sides have ended, then closes both. An end of stream on one side is passed on as
// such (half-close) and the other direction goes on; an error on either side ends both at once. To stop it, close either.
func Relay(a, b net.Conn) {
	var wg sync.WaitGroup
	wg.Go(func() { relayOneWay(a, b) })
	relayOneWay(b, a)
	wg.Wait()
	_ = a.Close()
	_ = b.Close()
}

func relayOneWay(dst, src net.Conn) {
	buf := relayBuffers.Get().(*[]byte)
	defer relayBuffers.Put(buf)
	for {
		n, err := src.Read(*buf)
		if n > 0 {
			if _, werr := dst.Write((*buf)[:n]); werr != nil {
				break
			}
		}
		if err == io.EOF { //nolint:errorlint // Read returns it unwrapped; a wrapped one is a broken stream
			if half, ok := dst.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
				return
			}
			break
		}
		if err != nil {
			break
		}
	}
	_ = src.Close()
	_ = dst.Close()
}

// RelayTo returns a handler that relays a stream to the server behind a unix socket.
func RelayTo(socket string, logger *slog.Logger) Handler {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return func(ctx context.Context, peer Identity, conn net.Conn) {
		dctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		var d net.Dialer
		local, err := d.DialContext(dctx, "unix", socket)
		if err != nil {
			logger.Debug("stream refused: its server does not answer", "peer", peer.ID, "error", err)
			return
		}
		Relay(conn, local)
	}
}
