package listener

import (
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// kick is called by whoever has ended the session, from anywhere.
func (p *pump) kick() { p.loop.post(p.guarded(func() { p.checkEnded(); p.settle() })) }

// checkEnded parts if the session was ended, as soon as nothing stands in the way of the last words: an answer that is held, whose wait
// ends at once then, or half a message that the client has not taken yet.
func (p *pump) checkEnded() {
	switch {
	case p.x.ended.Load() == nil, p.phase != relaying, p.waits:
	case !p.client.full():
		p.part(p.x.lastWords(nil))
	case p.ends == nil:
		p.ends = p.after(p.x.srv.cfg.Limits.ShutdownMessage, func() {
			if p.phase == relaying {
				p.bury()
			}
		})
	}
}

// part ends the relay: the backend hears nothing more, the client the last words, if there are any.
func (p *pump) part(last *pgwire.Error) {
	if p.phase != relaying {
		return
	}
	_, _ = p.backend.flushQueued(), p.client.flushQueued() // what fails here ends below
	p.phase = parting
	p.holdsNoMore()
	p.held, p.rest = nil, nil
	p.backend.discard()
	_ = unix.Shutdown(p.backend.fd, unix.SHUT_RDWR)
	if !p.x.lingers() {
		p.bury()
		return
	}
	if last != nil {
		if err := p.toClient(last.Encode()); err != nil {
			p.bury()
			return
		}
	}
	if !p.client.full() {
		p.linger()
		return
	}
	p.after(p.x.srv.cfg.Limits.ShutdownMessage, p.bury)
	p.settle()
}

// linger lets the client read what it was told: closing a socket with unread bytes in it would reset the connection.
func (p *pump) linger() {
	p.phase = lingering
	if p.tls != nil {
		_ = p.tls.CloseWrite() // a short record: what the socket does not take of it is lost with the connection
	}
	_ = unix.Shutdown(p.client.fd, unix.SHUT_WR)
	if p.client.eof {
		p.bury()
		return
	}
	p.after(linger, p.bury)
	p.settle()
}

// sides are what the session has sockets for.
func (p *pump) sides() []*side {
	if p.crossing != nil {
		return []*side{&p.client, &p.backend, &p.returns}
	}
	return []*side{&p.client, &p.backend}
}

// bury ends the session. Its sockets are closed at the end of the loop's turn.
func (p *pump) bury() {
	if p.phase == buried {
		return
	}
	if p.phase == renewing {
		p.x.srv.warm.coming(-1)
	}
	p.phase = buried
	p.holdsNoMore()
	if p.ends != nil {
		p.ends.Stop()
	}
	p.held, p.rest = nil, nil
	for _, s := range p.sides() {
		s.unqueue()
		s.discard()
		if s.listed != 0 {
			_ = unix.EpollCtl(p.loop.epoll, unix.EPOLL_CTL_DEL, s.fd, nil)
			s.listed = 0
		}
	}
	if p.crossing != nil {
		if p.x.lent.Swap(false) { // it was ended by a panic
			p.x.srv.lentNow.Add(-1)
		}
		p.loop.offloaded[p.crossing.Index] = nil
		p.loop.shortcut.Remove(p.crossing)
	}
	p.x.forget()
	p.loop.gone = append(p.loop.gone, p)
}
