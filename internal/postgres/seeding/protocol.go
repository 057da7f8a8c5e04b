package seeding

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
)

// The protocol between the node that is filled (the target, which asks) and the node it is filled from (the source, which
// answers). A connection carries frames: one byte of type, four bytes of length, the body. The first frame of a connection is
// a hello; the answer is a window or a refusal. A control connection then carries the list of files and later the end; data
// connections carry chunks. Questions are pipelined: each has a slot, and its answer names it.
const (
	protocolVersion = 5

	frameHello   = 'H' // target: hello
	frameWindow  = 'W' // source: windowInfo
	frameRefusal = 'E' // source: refusal; the connection ends
	frameFiles   = 'L' // source: a part of the list of files, compressed
	frameListed  = 'l' // source: the list is complete
	framePing    = 'P' // target: still there; source: so am I
	frameChunk   = 'C' // target: chunkQuestion
	frameSame    = 'S' // source: the target has it already
	frameZero    = 'Z' // source: all bytes are zero
	frameData    = 'D' // source: dataAnswer
	framePatch   = 'x' // source: the pages that differ
	frameGone    = 'G' // source: the file is no more
	frameEnd     = 'e' // target: nothing more to ask; source: ending
	frameDone    = 'F' // target: the copy is installed; nobody answers
)

// Sizes. A chunk is the unit of comparison and of transfer.
const (
	chunkSize  = 1 << 20
	hashSize   = 16
	tagSize    = 8                  // of a page's hash in a question: which pages are sent follows from it, what is taken for equal from whole hashes
	maxFrame   = chunkSize + 64<<10 // an incompressible chunk and what is said of it
	maxList    = 2_000_000          // files in a data directory
	controlLen = 8192               // of pg_control, in every version
	pipeline   = 64                 // questions under way on one data connection: a comparison waits for little but the way there and back
	fillLeast  = 4                  // of these, about chunks that the target lacks, if their answers are long
	fillMost   = 16                 // and if they are short
	fillWire   = 512 << 10          // how long answers are together that fill any link, on several connections
	holders    = 16                 // and about chunks that are read elsewhere, and kept in memory until they are answered
)

// Deadlines of one read or write.
const (
	helloTimeout = 15 * time.Second
	// A spread checkpoint may take most of checkpoint_timeout.
	windowTimeout = 2 * time.Hour
	silence       = time.Minute // between frames while something is asked
)

// hello opens a connection.
type hello struct {
	Version  int          `json:"version"`
	Member   ag.ReplicaID `json:"member"`
	Epoch    ag.Epoch     `json:"epoch"`
	Window   string       `json:"window,omitempty"` // of a data connection: which; of a control connection: the one to go on with, if any
	Data     bool         `json:"data,omitempty"`
	Listed   bool         `json:"listed,omitempty"`    // the list of that window is here already
	SystemID string       `json:"system_id,omitempty"` // of the copy that is there
	Spread   bool         `json:"spread,omitempty"`    // a checkpoint without a burst of writes
	Corrupt  bool         `json:"corrupt,omitempty"`   // the operator accepts pages whose checksum is wrong
	Anchor   bool         `json:"anchor,omitempty"`    // to the primary: keep the WAL of a copy that is made from a secondary
	After    *anchor      `json:"after,omitempty"`     // to a secondary: what the primary keeps
}

// anchor is what a primary keeps for a copy that is made from a secondary: WAL from Since on, in its slot. A checkpoint that ends
// before After was made since, so a secondary that has replayed After can begin a backup whose redo position is not before Since.
type anchor struct {
	Since   ag.LSN `json:"since"`
	After   ag.LSN `json:"after"`
	Catalog string `json:"catalog"` // databases and their tablespaces before that checkpoint
}

// windowInfo says what the copy is of.
type windowInfo struct {
	ID        string      `json:"id"`
	SystemID  string      `json:"system_id"`
	Major     int         `json:"major"`
	Timeline  ag.Timeline `json:"timeline"`
	Start     ag.LSN      `json:"start"` // redo position: replay begins here
	Page      int         `json:"page"`  // block size
	Checksums bool        `json:"checksums"`
	Key       []byte      `json:"key"` // of the hashes of pages in this window
	Spaces    []space     `json:"spaces,omitempty"`
	Slot      string      `json:"slot,omitempty"`
	Anchor    *anchor     `json:"anchor,omitempty"` // of a window that only keeps WAL
}

// space is a tablespace of the source. Machine, Device and Inode say which directory it is, so that a target on the same machine does
// not take the source's own for its place.
type space struct {
	OID      uint32 `json:"oid"`
	Location string `json:"location"`
	Machine  string `json:"machine,omitempty"`
	Device   uint64 `json:"device,omitempty"`
	Inode    uint64 `json:"inode,omitempty"`
}

// identify fills in which directory the tablespace is at.
func (s *space) identify() {
	var st unix.Stat_t
	if unix.Stat(s.Location, &st) == nil {
		s.Machine, s.Device, s.Inode = machine(), st.Dev, st.Ino
	}
}

// isAt tells whether place is the source's own directory.
func (s space) isAt(place string) bool {
	here := space{Location: place}
	here.identify()
	return here.Machine != "" && here.Machine == s.Machine && here.Device == s.Device && here.Inode == s.Inode
}

// machine names this boot of this machine, which containers on it share.
var machine = sync.OnceValue(func() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
})

// file is one entry of the list. Its index in the list is its name on data connections.
type file struct {
	Space uint32 `json:"s,omitempty"` // 0: the data directory
	Name  string `json:"n"`           // relative, with slashes
	Dir   bool   `json:"d,omitempty"`
	Size  int64  `json:"z,omitempty"`
}

func (f file) chunks() int { return int((f.Size + chunkSize - 1) / chunkSize) }

// span returns where chunk i begins and how long it is by the list.
func (f file) span(i int) (off int64, n int) {
	off = int64(i) * chunkSize
	return off, int(min(chunkSize, f.Size-off))
}

// refusal is why the source does not answer.
type refusal struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Codes of refusals.
const (
	codeBusy    = "BUSY"    // later
	codeGone    = "GONE"    // the window has ended: open another
	codeRefused = "REFUSED" // not from this node
	codeFailed  = "FAILED"
	codeCorrupt = "CORRUPT" // the source's data is damaged
)

// RefusedError is what the source answered instead of a copy.
type RefusedError struct {
	Code, Message string
}

// Error returns the source's words.
func (e *RefusedError) Error() string { return "the source answered: " + e.Message }

// ending closes a window.
type ending struct {
	End     ag.LSN `json:"end"`
	Control []byte `json:"control,omitempty"` // pg_control, read after all files and before the end of the backup
	Label   []byte `json:"label"`
	Spaces  []byte `json:"tablespace_map,omitempty"`
	Again   string `json:"again,omitempty"` // why one more window is needed
}

// chunkQuestion asks for one chunk. Hash is of the hashes of the pages that the target has there, and Tags is how each of these begins;
// if it has nothing, there are none.
type chunkQuestion struct {
	Slot  uint8
	File  uint32
	Chunk uint32
	Codec codec
	Hash  [hashSize]byte
	Tags  []byte
}

const questionHead = 1 + 4 + 4 + 2 + hashSize

func (q chunkQuestion) encode() []byte {
	b := make([]byte, 0, questionHead+len(q.Tags))
	b = append(b, q.Slot)
	b = binary.BigEndian.AppendUint32(b, q.File)
	b = binary.BigEndian.AppendUint32(b, q.Chunk)
	b = append(b, byte(q.Codec.kind), byte(q.Codec.level))
	b = append(b, q.Hash[:]...)
	return append(b, q.Tags...)
}

// decodeQuestion returns a question whose tags are those in b.
func decodeQuestion(b []byte) (q chunkQuestion, err error) {
	if len(b) < questionHead || (len(b)-questionHead)%tagSize != 0 {
		return q, fmt.Errorf("a question of %d bytes", len(b))
	}
	q.Slot, q.File, q.Chunk = b[0], binary.BigEndian.Uint32(b[1:]), binary.BigEndian.Uint32(b[5:])
	q.Codec = codec{codecKind(b[9]), int8(b[10])}
	q.Tags = b[questionHead:]
	copy(q.Hash[:], b[11:])
	if q.Slot >= pipeline {
		return q, fmt.Errorf("slot %d", q.Slot)
	}
	return q, q.Codec.check()
}

// answer is what the source says of a chunk: Len bytes are at the source, which are less than the list said if the file
// was cut. Hash is of these bytes. Codec and Body are of a data answer; Pages, a bitmap, of a patch.
type answer struct {
	Kind  byte
	Slot  uint8
	Len   uint32
	Hash  [hashSize]byte
	Codec codecKind
	Pages []byte
	Body  []byte
}

const answerHead = 1 + 4 + hashSize + 1 + 2

func (a answer) head() []byte {
	b := make([]byte, 0, answerHead+len(a.Pages))
	b = append(b, a.Slot)
	b = binary.BigEndian.AppendUint32(b, a.Len)
	b = append(b, a.Hash[:]...)
	b = append(b, byte(a.Codec))
	b = binary.BigEndian.AppendUint16(b, uint16(len(a.Pages)))
	return append(b, a.Pages...)
}

func decodeAnswer(kind byte, b []byte) (a answer, err error) {
	if len(b) < answerHead {
		return a, fmt.Errorf("an answer of %d bytes", len(b))
	}
	a = answer{Kind: kind, Slot: b[0], Len: binary.BigEndian.Uint32(b[1:]), Codec: codecKind(b[5+hashSize])}
	copy(a.Hash[:], b[5:])
	n := int(binary.BigEndian.Uint16(b[6+hashSize:]))
	if len(b) < answerHead+n {
		return a, errors.New("an answer with less pages than it says")
	}
	a.Pages, a.Body = b[answerHead:answerHead+n], b[answerHead+n:]
	if a.Slot >= pipeline || a.Len > chunkSize {
		return a, fmt.Errorf("an answer for slot %d of %d bytes", a.Slot, a.Len)
	}
	return a, nil
}

// framed is a connection that carries frames. Reading and writing may go on at the same time, each by one goroutine.
type framed struct {
	conn  net.Conn
	in    *bufio.Reader
	out   *bufio.Writer
	buf   []byte
	count func(n int) // bytes read and written, as they pass; may be nil
}

func newFramed(conn net.Conn) *framed {
	return &framed{conn: conn, in: bufio.NewReaderSize(conn, 64<<10), out: bufio.NewWriterSize(conn, 64<<10)}
}

// read returns the next frame. Its body is valid until the next read.
func (f *framed) read(limit time.Duration) (kind byte, body []byte, err error) {
	if err := f.conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return 0, nil, err
	}
	var head [5]byte
	if _, err := io.ReadFull(f.in, head[:]); err != nil {
		return 0, nil, err
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
		return 0, nil, noEOF(err)
	}
	if f.count != nil {
		f.count(len(head) + len(body))
	}
	return head[0], body, nil
}

// write puts a frame of the given parts into the buffer.
func (f *framed) write(kind byte, parts ...[]byte) error {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n > maxFrame {
		return fmt.Errorf("a frame of %d bytes", n)
	}
	if err := f.conn.SetWriteDeadline(time.Now().Add(silence)); err != nil {
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

func (f *framed) flush() error { return f.out.Flush() }

// writeJSON sends a frame that holds v, at once.
func (f *framed) writeJSON(kind byte, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := f.write(kind, b); err != nil {
		return err
	}
	return f.flush()
}

// expect reads one frame of that type into v; a refusal becomes an error.
func (f *framed) expect(kind byte, limit time.Duration, v any) error {
	got, body, err := f.read(limit)
	if err != nil {
		return noEOF(err)
	}
	if got == frameRefusal {
		return refused(body)
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

func refused(body []byte) error {
	var r refusal
	if err := json.Unmarshal(body, &r); err != nil {
		return fmt.Errorf("refused, and the reason cannot be read: %w", err)
	}
	return &RefusedError{Code: r.Code, Message: r.Message}
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
