package wire

import (
	"bytes"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
)

func TestQuestionAndAnswerKeepTheirFields(t *testing.T) {
	t.Parallel()
	q := Question{Slot: 3, File: 70_000, Chunk: 9, Codec: Codec{CodecZstd, 2}, Hash: pagesum.Sum([]byte("x")), Tags: []byte("12345678abcdefgh")}
	if got, err := DecodeQuestion(q.Encode()); err != nil || !reflect.DeepEqual(got, q) {
		t.Errorf("%+v became %+v (%v)", q, got, err)
	}
	a := Answer{Kind: FramePatch, Slot: 1, Len: ChunkSize, Hash: pagesum.Sum(nil), Codec: CodecMinLZ, Pages: []byte{1, 2, 3}, Body: []byte("body")}
	got, err := DecodeAnswer(FramePatch, append(a.Head(), a.Body...))
	if err != nil || got.Len != a.Len || got.Hash != a.Hash || got.Codec != a.Codec || !bytes.Equal(got.Pages, a.Pages) || string(got.Body) != "body" || got.Slot != 1 {
		t.Errorf("%+v became %+v (%v)", a, got, err)
	}
}

// FuzzFrames: no bytes from the other side, whatever they say, make a reader take more than a frame or leave its
// arrays.
func FuzzFrames(f *testing.F) {
	q := Question{Slot: 1, Codec: Codec{CodecMinLZ, 0}}
	f.Add(q.Encode())
	f.Add(append(Answer{Len: 5, Pages: []byte{3}}.Head(), "body"...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, err := DecodeQuestion(b); err == nil && (q.Slot >= Pipeline || q.Codec.check() != nil) {
			t.Errorf("taken: %+v", q)
		}
		if a, err := DecodeAnswer(FrameData, b); err == nil && (a.Slot >= Pipeline || a.Len > ChunkSize) {
			t.Errorf("taken: %+v", a)
		}
	})
}

func TestFramesAreBounded(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() { _, _ = a.Write([]byte{'D', 0xff, 0xff, 0xff, 0xff}) }()
	if _, _, err := NewConn(b).Read(5 * time.Second); err == nil || !strings.Contains(err.Error(), "frame of 4294967295 bytes") {
		t.Errorf("error %v", err)
	}
}
