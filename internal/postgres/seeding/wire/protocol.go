package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
)

// The protocol between the node that is filled (the target, which asks) and the node it is filled from (the source,
// which answers). A connection carries frames: one byte of type, four bytes of length, the body. The first frame of a
// connection is a hello; the answer is a window or a refusal. A control connection then carries the list of files and
// later the end; data connections carry chunks. Questions are pipelined: each has a slot, and its answer names it.
const (
	ProtocolVersion = 5

	FrameHello   = 'H' // target: Hello
	FrameWindow  = 'W' // source: Window
	FrameRefusal = 'E' // source: Refusal; the connection ends
	FrameFiles   = 'L' // source: a part of the list of files, compressed
	FrameListed  = 'l' // source: the list is complete
	FramePing    = 'P' // target: still there; source: so am I
	FrameChunk   = 'C' // target: Question
	FrameSame    = 'S' // source: the target has it already
	FrameZero    = 'Z' // source: all bytes are zero
	FrameData    = 'D' // source: Answer
	FramePatch   = 'x' // source: the pages that differ
	FrameGone    = 'G' // source: the file no longer exists
	FrameEnd     = 'e' // target: nothing more to ask; source: Ending
	FrameDone    = 'F' // target: the copy is installed; it has no answer
)

// Sizes. A chunk is the unit of comparison and of transfer.
const (
	ChunkSize    = 1 << 20
	TagSize      = 8                  // of a page's hash in a question: it decides which pages are sent; whole hashes decide which are equal
	maxFrame     = ChunkSize + 64<<10 // an incompressible chunk and its description
	MaxList      = 2_000_000          // files in a data directory
	MaxListBytes = 512 << 20          // of their list, five times what so many have
	MaxName      = 4096               // bytes of a file's name, as Linux has it
	MaxStreams   = 8                  // data connections of one window
	Pipeline     = 64                 // questions under way on one data connection: a comparison waits for little but the way there and back
	FillLeast    = 4                  // of these, about chunks that the target lacks, if their answers are long
	FillMost     = 16                 // and if they are short
	FillWire     = 512 << 10          // how long answers are together that fill any link, on several connections
	Holders      = 16                 // and about chunks that are read elsewhere, and kept in memory until they are answered
)

// Deadlines of one read or write.
const (
	HelloTimeout = 15 * time.Second
	// A spread checkpoint may take most of checkpoint_timeout.
	WindowTimeout = 2 * time.Hour
	Silence       = time.Minute     // between frames while something is asked
	ControlBudget = 2 * time.Minute // for the answer to a question on a control connection
)

// Hello opens a connection.
type Hello struct {
	Version  int          `json:"version"`
	Member   ag.ReplicaID `json:"member"`
	Epoch    ag.Epoch     `json:"epoch"`
	Window   string       `json:"window,omitempty"` // of a data connection: its window; of a control connection: the window to continue, if any
	Data     bool         `json:"data,omitempty"`
	Listed   bool         `json:"listed,omitempty"`    // the list of that window is here already
	SystemID string       `json:"system_id,omitempty"` // of the copy that exists here
	Spread   bool         `json:"spread,omitempty"`    // a checkpoint without a burst of writes
	Corrupt  bool         `json:"corrupt,omitempty"`   // the operator accepts pages whose checksum is wrong
	Anchor   bool         `json:"anchor,omitempty"`    // to the primary: keep the WAL of a copy that is made from a secondary
	After    *Anchor      `json:"after,omitempty"`     // to a secondary: the WAL that the primary keeps
}

// Anchor is the WAL that a primary keeps for a copy that is made from a secondary: from Since on, in its slot. A
// checkpoint that ends before After was made since. A secondary that has replayed After can therefore begin a backup
// whose redo position is not before Since.
type Anchor struct {
	Since   ag.LSN `json:"since"`
	After   ag.LSN `json:"after"`
	Catalog string `json:"catalog"` // databases and their tablespaces before that checkpoint
}

// Window describes the source of the copy.
type Window struct {
	ID        string      `json:"id"`
	SystemID  string      `json:"system_id"`
	Major     int         `json:"major"`
	Timeline  ag.Timeline `json:"timeline"`
	Start     ag.LSN      `json:"start"` // redo position: replay begins here
	Page      int         `json:"page"`  // block size
	Checksums bool        `json:"checksums"`
	Key       []byte      `json:"key"` // of the hashes of pages in this window
	Spaces    []Space     `json:"spaces,omitempty"`
	WAL       Space       `json:"wal,omitzero"` // the directory of WAL
	Slot      string      `json:"slot,omitempty"`
	Anchor    *Anchor     `json:"anchor,omitempty"` // of a window that only keeps WAL
}

// Space is a tablespace of the source. Machine, Device and Inode say which directory it is, so that a target on the
// same machine does not take the source's own for its place.
type Space struct {
	OID      uint32 `json:"oid"`
	Location string `json:"location"`
	Machine  string `json:"machine,omitempty"`
	Device   uint64 `json:"device,omitempty"`
	Inode    uint64 `json:"inode,omitempty"`
}

// Identify fills in which directory the tablespace is at.
func (s *Space) Identify() {
	var st unix.Stat_t
	if unix.Stat(s.Location, &st) == nil {
		s.Machine, s.Device, s.Inode = machine(), st.Dev, st.Ino
	}
}

// IsAt reports whether place is the source's own directory.
func (s Space) IsAt(place string) bool {
	here := Space{Location: place}
	here.Identify()
	return here.Machine != "" && here.Machine == s.Machine && here.Device == s.Device && here.Inode == s.Inode
}

// machine returns an identifier of this boot of this machine, which containers on it share.
var machine = sync.OnceValue(func() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
})

// File is one entry of the list. Its index in the list is its name on data connections.
type File struct {
	Space uint32 `json:"s,omitempty"` // 0: the data directory
	Name  string `json:"n"`           // relative, with slashes
	Dir   bool   `json:"d,omitempty"`
	Size  int64  `json:"z,omitempty"`
}

// Chunks returns the number of chunks of the file according to the list.
func (f File) Chunks() int { return int((f.Size + ChunkSize - 1) / ChunkSize) }

// Span returns the offset of chunk i, and its length according to the list.
func (f File) Span(i int) (off int64, n int) {
	off = int64(i) * ChunkSize
	return off, int(min(ChunkSize, f.Size-off))
}

// Refusal is the reason why the source does not answer.
type Refusal struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Codes of refusals.
const (
	CodeBusy    = "BUSY"    // later
	CodeGone    = "GONE"    // the window has ended: open another
	CodeRefused = "REFUSED" // not from this node
	CodeFailed  = "FAILED"
	CodeCorrupt = "CORRUPT" // the source's data is damaged
)

// RefusedError is the source's answer instead of a copy.
type RefusedError struct {
	Code, Message string
}

// Refuse is a refusal with that code.
func Refuse(code, message string) error { return &RefusedError{code, message} }

// Error returns the source's words.
func (e *RefusedError) Error() string { return "the source answered: " + e.Message }

// Ending closes a window.
type Ending struct {
	End     ag.LSN `json:"end"`
	Control []byte `json:"control,omitempty"` // pg_control, read after all files and before the end of the backup
	Label   []byte `json:"label"`
	Spaces  []byte `json:"tablespace_map,omitempty"`
	Again   string `json:"again,omitempty"` // why one more window is needed
}

// Question is the request for one chunk. Hash is the hash over the hashes of the pages that the target has there. Tags
// has the first bytes of each page hash. Both are empty if the target has nothing there.
type Question struct {
	Slot  uint8
	File  uint32
	Chunk uint32
	Codec Codec
	Hash  [pagesum.Size]byte
	Tags  []byte
}

const questionHead = 1 + 4 + 4 + 2 + pagesum.Size

// Encode returns the question as the body of a frame.
func (q Question) Encode() []byte {
	b := make([]byte, 0, questionHead+len(q.Tags))
	b = append(b, q.Slot)
	b = binary.BigEndian.AppendUint32(b, q.File)
	b = binary.BigEndian.AppendUint32(b, q.Chunk)
	b = append(b, byte(q.Codec.Kind), byte(q.Codec.Level))
	b = append(b, q.Hash[:]...)
	return append(b, q.Tags...)
}

// DecodeQuestion returns a question whose tags are those in b.
func DecodeQuestion(b []byte) (q Question, err error) {
	if len(b) < questionHead || (len(b)-questionHead)%TagSize != 0 {
		return q, fmt.Errorf("a question of %d bytes", len(b))
	}
	q.Slot, q.File, q.Chunk = b[0], binary.BigEndian.Uint32(b[1:]), binary.BigEndian.Uint32(b[5:])
	q.Codec = Codec{Kind(b[9]), int8(b[10])}
	q.Tags = b[questionHead:]
	copy(q.Hash[:], b[11:])
	if q.Slot >= Pipeline {
		return q, fmt.Errorf("slot %d", q.Slot)
	}
	return q, q.Codec.check()
}

// Answer is the source's answer about a chunk. Len is the number of its bytes at the source, which is less than in the
// list if the file was cut. Hash is of these bytes. Codec and Body belong to a data answer; Pages, a bitmap, to a
// patch.
type Answer struct {
	Kind  byte
	Slot  uint8
	Len   uint32
	Hash  [pagesum.Size]byte
	Codec Kind
	Pages []byte
	Body  []byte
}

const answerHead = 1 + 4 + pagesum.Size + 1 + 2

// Head returns the answer without its Body, as the beginning of a frame's body.
func (a Answer) Head() []byte {
	b := make([]byte, 0, answerHead+len(a.Pages))
	b = append(b, a.Slot)
	b = binary.BigEndian.AppendUint32(b, a.Len)
	b = append(b, a.Hash[:]...)
	b = append(b, byte(a.Codec))
	b = binary.BigEndian.AppendUint16(b, uint16(len(a.Pages)))
	return append(b, a.Pages...)
}

// DecodeAnswer decodes the body of a frame of that type.
func DecodeAnswer(kind byte, b []byte) (a Answer, err error) {
	if len(b) < answerHead {
		return a, fmt.Errorf("an answer of %d bytes", len(b))
	}
	a = Answer{Kind: kind, Slot: b[0], Len: binary.BigEndian.Uint32(b[1:]), Codec: Kind(b[5+pagesum.Size])}
	copy(a.Hash[:], b[5:])
	n := int(binary.BigEndian.Uint16(b[6+pagesum.Size:]))
	if len(b) < answerHead+n {
		return a, errors.New("an answer with less pages than it says")
	}
	a.Pages, a.Body = b[answerHead:answerHead+n], b[answerHead+n:]
	if a.Slot >= Pipeline || a.Len > ChunkSize {
		return a, fmt.Errorf("an answer for slot %d of %d bytes", a.Slot, a.Len)
	}
	return a, nil
}

// Conn is a connection that carries frames. One goroutine may read while another writes.
type Conn struct {
	conn  net.Conn
	in    *bufio.Reader
	out   *bufio.Writer
	buf   []byte
	Count func(n int) // bytes read and written, as they pass; may be nil
}

// NewConn returns a Conn over conn.
func NewConn(conn net.Conn) *Conn {
	return &Conn{conn: conn, in: bufio.NewReaderSize(conn, 64<<10), out: bufio.NewWriterSize(conn, 64<<10)}
}

// ErrSilent is the error of a read that ended because too little came in its time.
var ErrSilent = errors.New("the other side is silent")

// Read returns the next frame. Its body is valid until the next read.
func (f *Conn) Read(limit time.Duration) (kind byte, body []byte, err error) {
	if err := f.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return 0, nil, err
	}
	var head [5]byte
	if _, err := io.ReadFull(f.in, head[:]); err != nil {
		return 0, nil, silent(err)
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes", n)
	}
	if cap(f.buf) < int(n) {
		f.buf = make([]byte, n)
	}
	body = f.buf[:n]
	if _, err := io.ReadFull(f.in, body); err != nil {
		return 0, nil, silent(UnexpectedEOF(err))
	}
	if f.Count != nil {
		f.Count(len(head) + len(body))
	}
	return head[0], body, nil
}

func silent(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrSilent, err)
	}
	return err
}

// Write puts a frame of the given parts into the buffer.
func (f *Conn) Write(kind byte, parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n > maxFrame {
		return fmt.Errorf("a frame of %d bytes", n)
	}
	if err := f.conn.SetWriteDeadline(time.Now().Add(Silence)); err != nil {
		return err
	}
	var head [5]byte
	head[0] = kind
	binary.BigEndian.PutUint32(head[1:], uint32(n))
	if _, err := f.out.Write(head[:]); err != nil {
		return err
	}
	for _, p := range parts {
		if _, err := f.out.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// More reports whether a part of another frame has been received.
func (f *Conn) More() bool { return f.in.Buffered() > 0 }

// Flush sends the buffered frames.
func (f *Conn) Flush() error { return f.out.Flush() }

// WriteJSON sends a frame that holds v, at once.
func (f *Conn) WriteJSON(kind byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := f.Write(kind, b); err != nil {
		return err
	}
	return f.Flush()
}

// Expect reads one frame of that type into v; a refusal becomes an error.
func (f *Conn) Expect(kind byte, limit time.Duration, v any) error {
	got, body, err := f.Read(limit)
	if err != nil {
		return UnexpectedEOF(err)
	}
	if got == FrameRefusal {
		return DecodeRefusal(body)
	}
	if got != kind {
		return fmt.Errorf("a frame %q where %q was expected", got, kind)
	}
	if v == nil {
		return nil
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("frame %q: %w", kind, err)
	}
	return nil
}

// DecodeRefusal returns the refusal in the body of a frame as an error.
func DecodeRefusal(body []byte) error {
	var r Refusal
	if err := json.Unmarshal(body, &r); err != nil {
		return fmt.Errorf("refused, and the reason cannot be read: %w", err)
	}
	return &RefusedError{Code: r.Code, Message: r.Message}
}

// UnexpectedEOF turns io.EOF into io.ErrUnexpectedEOF.
func UnexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
