package listener

import (
	"errors"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// fromClient carries requests to PostgreSQL.
func (p *pump) fromClient() {
	if p.tls != nil {
		p.fromTLS(true)
		return
	}
	n, err := receive(p.client.fd, p.loop.buf)
	if wouldWait(err) {
		return
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	if p.crossing != nil {
		p.crossing.UpRead += uint64(n)
	}
	p.took(p.loop.buf[:n], err)
}

// took is called with what was read from the client, or with the end of it.
func (p *pump) took(b []byte, err error) {
	x := p.x
	if len(b) > 0 && p.phase == relaying && !p.deaf && x.ended.Load() == nil {
		x.bytesIn.Add(uint64(len(b)))
		p.forward(b)
	}
	if err == nil {
		return
	}
	p.client.eof = true
	if p.phase != relaying {
		p.bury()
		return
	}
	if errors.Is(err, io.EOF) || x.ended.Load() == nil {
		x.terminated.Store(true) // nobody reads an error any more
		if err := p.backend.flushQueued(); err != nil {
			p.sendFailed(&p.backend)
		}
		p.noMoreRequests()
	}
}

// noMoreRequests has the backend hear of the client's end behind everything the client sent: TLS may bring both in one turn of the loop.
func (p *pump) noMoreRequests() {
	if p.client.eof && !p.backend.full() {
		_ = unix.Shutdown(p.backend.fd, unix.SHUT_WR)
	}
}

// forward is session.forward without waiting.
func (p *pump) forward(chunk []byte) {
	x := p.x
	for len(chunk) > 0 && x.ended.Load() == nil {
		n, d, bad := x.release(&p.requests, chunk)
		if bad != nil {
			x.end(ending{"protocol", "invalid message length", true})
			return
		}
		if x.leaves.Load() {
			p.leave()
			return
		}
		if x.ended.Load() != nil { // the verdict may have been spoken without what release has just counted
			break
		}
		if n == 0 {
			p.hold(d, chunk)
			return
		}
		if err := p.backend.send(chunk[:n], p.mayQueue()); err != nil {
			p.sendFailed(&p.backend)
			break
		}
		chunk = chunk[n:]
	}
	p.holdsNoMore()
}

// hold keeps a request until the drain is over or the session is, or, if the client was not answered yet, for a moment.
func (p *pump) hold(d *drainage, chunk []byte) {
	x := p.x
	p.rest = append([]byte(nil), chunk...)
	if p.holds == nil {
		p.holds = time.NewTimer(x.srv.cfg.HoldMax)
		x.srv.counts.drained.Add(1)
	}
	p.drains = true
	holds := p.holds
	x.srv.wg.Go(func() {
		x.await(d, holds)
		p.loop.post(p.guarded(func() {
			rest := p.rest
			p.drains, p.rest = false, nil
			if p.phase == relaying {
				p.forward(rest)
			}
			p.settle()
		}))
	})
}

func (p *pump) holdsNoMore() {
	if p.holds != nil {
		p.holds.Stop()
		p.holds = nil
	}
}
