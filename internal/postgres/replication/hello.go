package replication

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// The kinds of stream.
const (
	// KindWAL is a walreceiver's connection: physical streaming under an application name that commits may wait for.
	KindWAL = "wal"
	// KindQuery is an ordinary superuser session, for pg_rewind and slot synchronization.
	KindQuery = "query"
	// KindBackup is a replication connection for BASE_BACKUP, under a name that no commit waits for.
	KindBackup = "backup"
)

// The codes of a refusing Answer.
const (
	CodeEpoch        = "epoch"        // the two nodes are not in the same epoch
	CodeDiverged     = "diverged"     // the secondary's WAL is not a prefix of the primary's
	CodeNotPrimary   = "not-primary"  // the node does not lead
	CodeGone         = "gone"         // the WAL that the secondary needs next is no longer here
	CodeBusy         = "busy"         // temporarily not possible: try again
	CodeUnauthorised = "unauthorised" // the peer may not open this stream
)

const (
	maxHello      = 4 << 10          // bytes of a Hello or Answer frame
	helloTimeout  = 5 * time.Second  // for a peer to send its Hello
	maxTimelines  = 16               // entries of Hello.Timelines that are sent, newest last
	answerTimeout = 30 * time.Second // for the other node to verify, to end an old stream, and to connect
)

// Hello is the first frame that a secondary's agent sends on a stream: its member, epoch and data.
type Hello struct {
	Kind        string             `json:"kind"`
	Member      ag.ReplicaID       `json:"member"`
	Epoch       ag.Epoch           `json:"epoch"`
	Copy        ag.CopyID          `json:"copy,omitempty"`
	Incarnation string             `json:"incarnation,omitempty"`
	Position    ag.Position        `json:"position,omitzero"`    // where streaming would start
	Needs       ag.LSN             `json:"needs,omitzero"`       // of a copy without a position: where its recovery begins, of which it has no WAL
	Timelines   []ag.TimelineEntry `json:"timelines,omitempty"`  // the copy's own history, oldest first; the last 16 travel
	CRC         uint32             `json:"crc,omitempty"`        // of the CRCLen bytes of WAL that end at Position
	CRCLen      int                `json:"crc_length,omitempty"` // 0: no WAL at hand, nothing to compare
}

// Answer is the reply to a Hello. A refusal has a Code and a Message for people.
type Answer struct {
	OK      bool        `json:"ok"`
	Code    string      `json:"code,omitempty"`
	Message string      `json:"message,omitempty"`
	Epoch   ag.Epoch    `json:"epoch"`
	TLI     ag.Timeline `json:"tli,omitempty"`
	Switch  ag.LSN      `json:"switch_lsn,omitempty"` // where TLI leaves its parent
}

// RefusedError is a Hello answered with a refusal.
type RefusedError struct{ Answer Answer }

// Error names the node that refused, and the reason.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("the other node refused the stream (%s): %s", e.Answer.Code, e.Answer.Message)
}

// Open performs the handshake on a newly dialed connection: it sends h and reads the answer. After a nil error the next
// bytes on conn are the server's answer to a startup packet that the other agent has sent; the caller sends none. A
// refusal is a *RefusedError. The caller closes conn in any case.
func Open(ctx context.Context, conn net.Conn, h Hello) (Answer, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(answerTimeout))
	if n := len(h.Timelines); n > maxTimelines {
		h.Timelines = h.Timelines[n-maxTimelines:]
	}
	var a Answer
	if err := writeFrame(conn, h); err != nil {
		return a, errors.Join(fmt.Errorf("send hello: %w", err), ctx.Err())
	}
	if err := readFrame(conn, &a); err != nil {
		return a, errors.Join(fmt.Errorf("read answer: %w", err), ctx.Err())
	}
	if !a.OK {
		return a, &RefusedError{a}
	}
	if !stop() {
		return a, ctx.Err()
	}
	return a, conn.SetDeadline(time.Time{})
}

// writeFrame sends v as JSON after a four-byte length, in one Write.
func writeFrame(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > maxHello {
		return fmt.Errorf("frame of %d bytes is longer than %d", len(body), maxHello)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	_, err = w.Write(append(frame, body...))
	return err
}

// readFrame reads one such frame and not a byte more: the rest belongs to PostgreSQL.
func readFrame(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxHello {
		return fmt.Errorf("frame of %d bytes is longer than %d", n, maxHello)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}
