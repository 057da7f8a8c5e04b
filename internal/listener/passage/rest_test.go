package passage

import (
	"bytes"
	"io"
	"testing"
)

// TestRest holds that all is kept, in order, or that it is said that it was not.
func TestRest(t *testing.T) {
	var r Rest
	for _, n := range []int{1, 0, 4096, maxRest - 4097} {
		if m, err := r.Write(bytes.Repeat([]byte{byte(n)}, n)); m != n || err != nil {
			t.Fatal(m, err)
		}
	}
	if r.Spilled || len(r.B) != maxRest || r.B[0] != 1 || r.B[1] != 0 {
		t.Fatalf("%d bytes, spilled %v", len(r.B), r.Spilled)
	}
	for range 2 {
		if n, err := io.Copy(&r, bytes.NewReader([]byte("x"))); n != 1 || err != nil || !r.Spilled || len(r.B) != maxRest {
			t.Fatalf("%d bytes, spilled %v: %d, %v", len(r.B), r.Spilled, n, err)
		}
	}
}
