package keeper

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
)

// maxLine bounds a message. The arguments and the environment of a server need far less.
const maxLine = 1 << 20

// The operations, as on the wire.
const (
	opHello    = "HELLO"
	opStart    = "START"
	opArm      = "ARM"
	opExtend   = "EXTEND"
	opDisarm   = "DISARM"
	opFence    = "FENCE"
	opStop     = "STOP"
	opDetach   = "DETACH"
	opStatus   = "STATUS"
	opShutdown = "SHUTDOWN"
	opLog      = "LOG"
)

// request is one line from the agent. Requests may overlap: a FENCE does not wait for a STOP.
type request struct {
	ID          uint64        `json:"id"`
	Op          string        `json:"op"`
	Version     int           `json:"version,omitempty"`
	Incarnation string        `json:"incarnation,omitempty"`
	Start       *StartRequest `json:"start,omitempty"`
	Epoch       ag.Epoch      `json:"epoch,omitempty"`
	Deadline    time.Duration `json:"deadline,omitempty"` // ARM, EXTEND, DETACH: absolute BOOTTIME
	Reason      string        `json:"reason,omitempty"`
	Mode        string        `json:"mode,omitempty"`
	Budget      time.Duration `json:"budget,omitempty"`
}

// message is one line from the keeper: the reply to request ID, or an exit (ID 0).
type message struct {
	ID    uint64 `json:"id,omitempty"`
	Error string `json:"error,omitempty"`
	Code  string `json:"code,omitempty"`
	PID   int    `json:"pid,omitempty"`
	Clean bool   `json:"clean,omitempty"`
	State *State `json:"state,omitempty"`
	Exit  *Exit  `json:"exit,omitempty"`
	Log   bool   `json:"log,omitempty"` // a descriptor of the server's log comes with the message

	file *os.File // that log; the writer of the message closes it
}

// encode returns the message as a line, and the control message that carries the descriptor of file.
func (m *message) encode() (line, control []byte, err error) {
	line, err = json.Marshal(m)
	if m.file != nil {
		control = unix.UnixRights(int(m.file.Fd()))
	}
	return append(line, '\n'), control, err
}

// fileReader reads a connection, and keeps the files that come with the bytes.
type fileReader struct {
	nc    *net.UnixConn
	files []*os.File
}

func (r *fileReader) Read(b []byte) (int, error) {
	control := make([]byte, unix.CmsgSpace(4*4))
	n, c, _, _, err := r.nc.ReadMsgUnix(b, control)
	if list, bad := unix.ParseSocketControlMessage(control[:c]); bad == nil {
		for _, m := range list {
			fds, _ := unix.ParseUnixRights(&m) // other control messages have none
			for _, fd := range fds {
				unix.CloseOnExec(fd)
				r.files = append(r.files, os.NewFile(uintptr(fd), "from the keeper"))
			}
		}
	}
	if err == nil && n == 0 && len(b) > 0 {
		err = io.EOF
	}
	return n, err
}

// take returns the first file that came; nil if there is none.
func (r *fileReader) take() (f *os.File) {
	if len(r.files) > 0 {
		f, r.files = r.files[0], r.files[1:]
	}
	return f
}

// close closes the files that nobody took.
func (r *fileReader) close() {
	for f := r.take(); f != nil; f = r.take() {
		_ = f.Close()
	}
}

func (m *message) setError(err error) {
	if err == nil {
		return
	}
	m.Error, m.Code = err.Error(), "refused"
	for code, sentinel := range codes {
		if errors.Is(err, sentinel) {
			m.Code = code
		}
	}
}

// err returns the keeper's refusal as an error for errors.Is.
func (m *message) err() error {
	if m.Error == "" {
		return nil
	}
	sentinel, ok := codes[m.Code]
	if !ok {
		sentinel = ErrRefused
	}
	return &refusal{m.Error, sentinel}
}

type refusal struct {
	text string
	kind error
}

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return r.kind }

// refuse returns a refusal of that kind.
func refuse(kind error, format string, args ...any) error {
	return &refusal{fmt.Sprintf(format, args...), kind}
}

// lines reads JSON lines of bounded length.
type lines struct{ s *bufio.Scanner }

func newLines(r io.Reader) lines {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 4096), maxLine)
	return lines{s}
}

func (l lines) next(v any) error {
	if !l.s.Scan() {
		if err := l.s.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	return json.Unmarshal(l.s.Bytes(), v)
}

// peerUID returns the user at the other end of a Unix socket, as the kernel noted it when it connected.
func peerUID(nc *net.UnixConn) (uint32, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("read peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, credErr); err != nil {
		return 0, fmt.Errorf("read peer credentials: %w", err)
	}
	return cred.Uid, nil
}
