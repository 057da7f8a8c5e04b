package replication

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// message builds a protocol message.
func message(kind byte, payload string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(payload)+4))
	return append(b, payload...)
}

// walMessage builds a walsender's message with n bytes of WAL.
func walMessage(end ag.LSN, n int) []byte {
	p := binary.BigEndian.AppendUint64([]byte{'w'}, uint64(end)-uint64(n))
	p = binary.BigEndian.AppendUint64(p, uint64(end))
	p = binary.BigEndian.AppendUint64(p, 0)
	return message('d', string(append(p, bytes.Repeat([]byte{'x'}, n)...)))
}

// reply builds the keepalive with which a walsender answers a status update.
func reply() []byte {
	b := keepalive(0x2000)
	b[len(b)-1] = 0
	return b
}

// split runs b through a splitter in pieces of at most step bytes and returns what it saw, frames by type and size.
func split(b []byte, step int) (kinds string, sizes []int, rest []byte, err error) {
	var s splitter
	var buf []byte
	for len(b) > 0 {
		n := min(step, len(b))
		buf = append(buf, b[:n]...)
		b = b[n:]
		for {
			f, n, err := s.next(buf)
			if err != nil {
				return kinds, sizes, buf, err
			}
			if n == 0 {
				break
			}
			if f.size > 0 {
				kinds += string(f.kind)
				if sub := f.sub(); sub != 0 {
					kinds += string(sub)
				}
				sizes = append(sizes, f.size)
			}
			buf = buf[n:]
		}
	}
	return kinds, sizes, buf, nil
}

func TestSplitter(t *testing.T) {
	t.Parallel()
	stream := bytes.Join([][]byte{
		message('R', "\x00\x00\x00\x00"), message('Z', "I"), message('W', "\x00\x00\x00"), walMessage(1<<20, 131072),
		keepalive(1 << 20), walMessage(1<<20, 3), reply(), message('c', ""), message('E', strings.Repeat("e", 500)),
	}, nil)
	for _, step := range []int{1, 2, 5, 7, 22, 63, 64, 65, 1000, 1 << 20} {
		kinds, sizes, rest, err := split(stream, step)
		if kinds != "RZWdwdkdwdkcE" || len(rest) != 0 || err != nil {
			t.Errorf("in steps of %d: %q %v, %d bytes left, err %v", step, kinds, sizes, len(rest), err)
		}
	}
}

func TestSplitterRefusesLengths(t *testing.T) {
	t.Parallel()
	for _, length := range []uint32{0, 3, 1<<30 + 1, 1 << 31, 1<<32 - 1} {
		b := binary.BigEndian.AppendUint32([]byte{'d'}, length)
		if _, _, err := new(splitter).next(append(b, make([]byte, 100)...)); err == nil {
			t.Errorf("a message with a length of %d was taken", length)
		}
		if err := new(frontend).feed(b, func(frame) error { return nil }); err == nil {
			t.Errorf("a frontend message with a length of %d was taken", length)
		}
	}
}

func TestStatusFrame(t *testing.T) {
	t.Parallel()
	want := status{write: 0x1_0000_0003, flush: 2, apply: 1}
	b := statusUpdate(want)
	var f frame
	var in frontend
	for i := range b { // in the smallest pieces
		if err := in.feed(b[i:i+1], func(got frame) error { f = got; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if len(b) != statusLen || !f.isStatus() || !f.replyWanted() || f.status() != want {
		t.Errorf("status update read as %+v, %+v", f, f.status())
	}
	k := keepalive(77)
	kf := frame{kind: 'd', head: k, size: len(k)}
	if end, ok := kf.walEnd(); !kf.isKeepalive() || !ok || end != 77 {
		t.Errorf("keepalive read as %+v, end %v", kf, end)
	}
}

func FuzzSplitter(f *testing.F) {
	f.Add(walMessage(1<<20, 100), 3)
	f.Add(append(keepalive(1), reply()...), 7)
	f.Add(message('E', strings.Repeat("e", 200)), 64)
	f.Add([]byte("d\xff\xff\xff\xff"), 1)
	f.Add([]byte("d\x00\x00\x00\x04d\x00\x00\x00\x05k"), 1)
	f.Fuzz(func(t *testing.T, b []byte, step int) {
		if step < 1 || step > 1<<16 {
			return
		}
		kinds, _, rest, err := split(b, step)
		whole, _, wholeRest, wholeErr := split(b, len(b)+1)
		if (err == nil) != (wholeErr == nil) || err == nil && (kinds != whole || !bytes.Equal(rest, wholeRest)) {
			t.Errorf("in steps of %d: %q, rest %q, err %v; at once: %q, rest %q, err %v", step, kinds, rest, err, whole, wholeRest, wholeErr)
		}
		if len(rest) >= wholeLen && err == nil {
			t.Errorf("%d bytes are kept back", len(rest))
		}
	})
}

func FuzzStartup(f *testing.F) {
	f.Add(startupPacket(Hello{Kind: KindWAL, Member: "s1", Epoch: 3}, "postgres"))
	f.Add([]byte("\x00\x00\x00\x08\x04\xd2\x16\x2f\x00\x00\x00\x08\x04\xd2\x16\x30\x00\x00\x00\x09\x00\x03\x00\x00\x00"))
	f.Add([]byte("\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\x00\x00\x00\x12\x00\x03\x00\x00user\x00p\x00\x00x"))
	f.Add([]byte("\x7f\xff\xff\xff\x00\x03\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := readStartup(&conversation{in: bytes.NewReader(b)})
		if err != nil {
			return
		}
		if _, err := s.kind(); err == nil && len(s.params["replication"]) > 8 {
			t.Errorf("replication = %q was understood", s.params["replication"])
		}
		if n := s.negotiation(); n != nil && int(binary.BigEndian.Uint32(n[1:])) != len(n)-1 {
			t.Error("negotiation of the wrong length")
		}
	})
}

func FuzzHello(f *testing.F) {
	var b bytes.Buffer
	if err := writeFrame(&b, Hello{Kind: KindWAL, Member: "s1", Epoch: 1}); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte("\x00\x00\x10\x01{}"))
	f.Add([]byte("\x00\x00\x00\x02{}rest"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h Hello
		r := bytes.NewReader(b)
		if readFrame(r, &h) == nil && len(b)-r.Len() != 4+int(binary.BigEndian.Uint32(b)) {
			t.Error("read past the frame")
		}
	})
}

// conversation is a connection whose other side has said all it will say.
type conversation struct {
	in  *bytes.Reader
	out bytes.Buffer
}

func (c *conversation) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *conversation) Write(b []byte) (int, error) { return c.out.Write(b) }

func TestReadStartup(t *testing.T) {
	t.Parallel()
	packet := startupPacket(Hello{Kind: KindQuery, Member: "s1"}, "me")
	asked := append([]byte("\x00\x00\x00\x08\x04\xd2\x16\x2f\x00\x00\x00\x08\x04\xd2\x16\x30"), packet...)
	c := &conversation{in: bytes.NewReader(append(asked, "behind"...))}
	s, err := readStartup(c)
	if err != nil || c.out.String() != "NN" || s.params["user"] != "me" || s.params["application_name"] != "cot_query_s1" {
		t.Errorf("readStartup = %v, %v, said %q", s, err, c.out.String())
	}
	if c.in.Len() != len("behind") {
		t.Errorf("%d bytes behind the packet are left, want 6", c.in.Len())
	}
	cancel := []byte("\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x02")
	if _, err := readStartup(&conversation{in: bytes.NewReader(cancel)}); !errors.Is(err, errCancel) {
		t.Errorf("cancel request: %v", err)
	}
}

func TestKind(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ replication, name, want string }{
		{"true", Walreceiver, KindWAL},
		{"TRUE", Walreceiver, KindWAL},
		{"t", Walreceiver, KindWAL},
		{"tr", Walreceiver, KindWAL},
		{"y", Walreceiver, KindWAL},
		{"YES", Walreceiver, KindWAL},
		{"on", Walreceiver, KindWAL},
		{"1", Walreceiver, KindWAL},
		{"true", "pg_basebackup", KindBackup},
		{"true", "pg_receivewal", ""},
		{"true", "", ""},
		{"database", "", KindBackup},
		{"f", "", KindQuery},
		{"no", "", KindQuery},
		{"of", "", KindQuery},
		{"0", "", KindQuery},
		{"o", "", ""},
		{"", "", ""},
		{"truely", "", ""},
		{"2", "", ""},
		{"DATABASE", "", ""},
	} {
		s := startup{params: map[string]string{"replication": tc.replication, "application_name": tc.name}}
		if got, err := s.kind(); got != tc.want || (err != nil) != (tc.want == "") {
			t.Errorf("replication=%q of %q: kind %q, err %v, want %q", tc.replication, tc.name, got, err, tc.want)
		}
	}
	if got, _ := (startup{}).kind(); got != KindQuery {
		t.Errorf("without replication: kind %q", got)
	}
}

func TestNegotiation(t *testing.T) {
	t.Parallel()
	if n := (startup{}).negotiation(); n != nil {
		t.Errorf("protocol 3.0 is told %q", n)
	}
	got := startup{minor: 2, params: map[string]string{"_pq_.x": "1", "user": "u"}}.negotiation()
	if want := "v\x00\x00\x00\x13\x00\x03\x00\x00\x00\x00\x00\x01_pq_.x\x00"; string(got) != want {
		t.Errorf("negotiation = %q, want %q", got, want)
	}
}
