package pgwire

import (
	"bytes"
	"testing"
)

func FuzzFramer(f *testing.F) {
	f.Add([]byte{'Z', 0, 0, 0, 5, 'I', 'D', 0, 0, 0, 4}, 3)
	f.Add([]byte{'D', 0xff, 0xff, 0xff, 0xff, 0}, 1)
	f.Add([]byte{'E', 0, 0, 0, 3}, 2)
	f.Add([]byte{'D', 0, 1, 0, 4, 'Q', 0, 0, 0, 4}, 2)             // a length that sixteen bits cut to four
	f.Add([]byte{'d', 0x7f, 0xff, 0xff, 0xff, 'Q', 0, 0, 0, 4}, 4) // the next message is the body of this one (CVE-2024-27304)
	f.Fuzz(func(t *testing.T, stream []byte, size int) {
		var whole, pieces [][]byte
		note := func(to *[][]byte) func(byte, []byte) {
			return func(typ byte, body []byte) { *to = append(*to, append([]byte{typ}, body...)) }
		}
		var a, b Framer
		errA := a.Scan(stream, note(&whole))
		var errB error
		size = max(1, size&0xff)
		for rest := stream; len(rest) > 0 && errB == nil; rest = rest[min(size, len(rest)):] {
			errB = b.Scan(rest[:min(size, len(rest))], note(&pieces))
		}
		if (errA == nil) != (errB == nil) || len(whole) != len(pieces) {
			t.Fatalf("whole %d messages, %v; in pieces %d, %v", len(whole), errA, len(pieces), errB)
		}
		for i := range whole {
			if !bytes.Equal(whole[i], pieces[i]) {
				t.Fatalf("message %d differs", i)
			}
		}
		if errA == nil && a.AtBoundary() != b.AtBoundary() {
			t.Fatal("boundary differs")
		}
	})
}

// TestHoldsBack holds that a message is short by its whole length: the end of a long one is not held, of which the
// beginning was passed on.
func TestHoldsBack(t *testing.T) {
	for _, c := range []struct {
		typ   byte
		size  int
		holds bool
	}{{'C', 0, true}, {'C', 9, true}, {'C', 64, true}, {'C', 65, false}, {'C', 200, false}, {'Z', 1, true}, {'Z', 300, false}, {'D', 9, false}} {
		var f Framer
		if f.HoldsBack() {
			t.Error("it holds between two messages")
		}
		message := AppendMessage(nil, c.typ, make([]byte, c.size))
		for i := range message {
			_, whole, err := f.Next(message[i : i+1])
			want := c.holds || i < 4 && c.typ != 'D'
			if err != nil || f.HoldsBack() != (want && !whole) {
				t.Errorf("%c with a body of %d bytes: after %d it is held: %v, %v", c.typ, c.size, i+1, !want, err)
			}
		}
	}
}
