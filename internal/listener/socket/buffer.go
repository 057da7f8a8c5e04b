package socket

import "sync"

// The sizes of a Buffer.
const (
	LargeBuffer = 16 << 10
	SmallBuffer = 1 << 10
)

// buffers are the large ones.
var buffers = sync.Pool{New: func() any { return new([LargeBuffer]byte) }}

// Buffer is a buffer for reading that is small while little passes.
type Buffer struct {
	B     []byte
	large *[LargeBuffer]byte // nil while the buffer is small
}

// Fit sizes the buffer for the next read, after one that filled took bytes of it. The first kept bytes are preserved.
func (s *Buffer) Fit(took, kept int) {
	switch {
	case s.B == nil:
		s.B = make([]byte, SmallBuffer)
	case s.large == nil && took == len(s.B):
		s.large = buffers.Get().(*[LargeBuffer]byte) //nolint:forcetypeassert // nothing else is in the pool
		copy(s.large[:], s.B[:kept])
		s.B = s.large[:]
	case s.large != nil && took < SmallBuffer/2:
		small := make([]byte, SmallBuffer)
		copy(small, s.B[:kept])
		s.Free()
		s.B = small
	}
}

// Free gives a large buffer back.
func (s *Buffer) Free() {
	if s.large != nil {
		buffers.Put(s.large)
		s.large, s.B = nil, nil
	}
}
