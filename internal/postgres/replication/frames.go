package replication

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Sizes of the frames that are inspected: a CopyData message ('d' and a length) around one replication message.
const (
	headerLen    = 5
	keepaliveLen = headerLen + 1 + 8 + 8 + 1         // 'k': end of WAL, time, reply wanted
	statusLen    = headerLen + 1 + 8 + 8 + 8 + 8 + 1 // 'r': write, flush, apply, time, reply wanted
	walHeadLen   = headerLen + 1 + 8 + 8 + 8         // 'w': start, end of WAL, time; the WAL follows

	// wholeLen is the size up to which the splitter waits for a whole frame; longer frames are forwarded as they
	// arrive.
	wholeLen = 64
)

// frame is a message of the PostgreSQL protocol as far as the splitter has it: a short one completely, a longer one at
// least up to wholeLen.
type frame struct {
	kind byte   // the message's type
	head []byte // from the type byte on
	size int    // of the whole message, type and length included
}

// whole reports whether head is all of the message.
func (f frame) whole() bool { return len(f.head) == f.size }

// sub returns the type of the replication message inside a CopyData message, or 0.
func (f frame) sub() byte {
	if f.kind != 'd' || len(f.head) <= headerLen {
		return 0
	}
	return f.head[headerLen]
}

// replyWanted returns the last byte of a keepalive or a status update.
func (f frame) replyWanted() bool { return f.head[len(f.head)-1] != 0 }

// isKeepalive reports whether the frame is a primary's keepalive, isStatus a secondary's status update, isHotStandby
// its xmin feedback.
func (f frame) isKeepalive() bool  { return f.sub() == 'k' && f.whole() && f.size == keepaliveLen }
func (f frame) isStatus() bool     { return f.sub() == 'r' && f.whole() && f.size == statusLen }
func (f frame) isHotStandby() bool { return f.sub() == 'h' && f.whole() }

// walEnd returns the end of the primary's WAL in a keepalive or a WAL message.
func (f frame) walEnd() (ag.LSN, bool) {
	switch {
	case f.isKeepalive():
		return ag.LSN(binary.BigEndian.Uint64(f.head[headerLen+1:])), true
	case f.sub() == 'w' && len(f.head) >= walHeadLen:
		return ag.LSN(binary.BigEndian.Uint64(f.head[headerLen+9:])), true
	}
	return 0, false
}

// dataEnd returns where the WAL in a WAL message ends.
func (f frame) dataEnd() (ag.LSN, bool) {
	if f.sub() != 'w' || len(f.head) < walHeadLen || f.size < walHeadLen {
		return 0, false
	}
	return ag.LSN(binary.BigEndian.Uint64(f.head[headerLen+1:])) + ag.LSN(f.size-walHeadLen), true
}

// status is what a secondary reports: how far its WAL is written, flushed and applied.
type status struct{ write, flush, apply ag.LSN }

func (f frame) status() status {
	p := f.head[headerLen+1:]
	return status{
		write: ag.LSN(binary.BigEndian.Uint64(p)),
		flush: ag.LSN(binary.BigEndian.Uint64(p[8:])),
		apply: ag.LSN(binary.BigEndian.Uint64(p[16:])),
	}
}

// splitter cuts a byte stream into frames and keeps only the position within a message. Buffers are the caller's.
type splitter struct {
	skip int // bytes of the current message still to come
}

// next inspects the front of b. A message that begins there is returned as a frame once enough of it is in b; n is the
// part of it that is in b. Later calls return the rest of a long message as n > 0 without a frame (f.size 0). n = 0
// without an error means that more bytes are needed.
func (s *splitter) next(b []byte) (f frame, n int, err error) {
	if s.skip > 0 {
		n = min(s.skip, len(b))
		s.skip -= n
		return frame{}, n, nil
	}
	if len(b) < headerLen {
		return frame{}, 0, nil
	}
	length := binary.BigEndian.Uint32(b[1:])
	if length < 4 || length > 1<<30 {
		return frame{}, 0, fmt.Errorf("message %q with a length of %d bytes", b[0], length)
	}
	size := int(length) + 1
	if len(b) < min(size, wholeLen) {
		return frame{}, 0, nil
	}
	n = min(size, len(b))
	s.skip = size - n
	return frame{kind: b[0], head: b[:n], size: size}, n, nil
}

// between reports whether the stream is at the border of two messages, where another message can be inserted.
func (s *splitter) between() bool { return s.skip == 0 }

// pgEpoch is the zero of PostgreSQL's timestamps.
var pgEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func copyData(capacity int, kind byte) []byte {
	return append(make([]byte, 0, capacity), 'd', 0, 0, 0, 0, kind)
}

func finish(b []byte, replyWanted bool) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(time.Since(pgEpoch).Microseconds()))
	reply := byte(0)
	if replyWanted {
		reply = 1
	}
	b = append(b, reply)
	binary.BigEndian.PutUint32(b[1:], uint32(len(b)-1))
	return b
}

// statusUpdate returns a secondary's status update that requests a reply.
func statusUpdate(s status) []byte {
	b := copyData(statusLen, 'r')
	for _, l := range []ag.LSN{s.write, s.flush, s.apply} {
		b = binary.BigEndian.AppendUint64(b, uint64(l))
	}
	return finish(b, true)
}

// keepalive returns a primary's keepalive that requests a reply.
func keepalive(end ag.LSN) []byte {
	return finish(binary.BigEndian.AppendUint64(copyData(keepaliveLen, 'k'), uint64(end)), true)
}

// maxFrontend bounds a message of a walreceiver; its longest are commands of a few hundred bytes.
const maxFrontend = 64 << 10

var errLongFrontend = errors.New("message longer than a walreceiver sends")
