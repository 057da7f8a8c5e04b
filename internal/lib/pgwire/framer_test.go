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
