package pool

import (
	"testing"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

func TestAnsweredIdle(t *testing.T) {
	done := pgwire.AppendMessage(nil, 'C', pgwire.AppendCString(nil, "DISCARD ALL"))
	idle := pgwire.AppendMessage(nil, 'Z', []byte{'I'})
	for _, tt := range []struct {
		name            string
		b               []byte
		whole, expected bool
	}{
		{"nothing yet", nil, false, true},
		{"a half", done[:7], false, true},
		{"the end is to come", done, false, true},
		{"done", append(append([]byte{}, done...), idle...), true, true},
		{"with a setting and a notice", append(append(pgwire.AppendMessage(nil, 'S', []byte("a\x00b\x00")), pgwire.AppendMessage(nil, 'N', nil)...), idle...), true, true},
		{"more behind it", append(append([]byte{}, idle...), 'N'), false, false},
		{"in a transaction", pgwire.AppendMessage(nil, 'Z', []byte{'T'}), false, false},
		{"an error", pgwire.AppendMessage(nil, 'E', nil), false, false},
		{"rows", pgwire.AppendMessage(nil, 'D', nil), false, false},
		{"a length below its own", []byte{'C', 0, 0, 0, 3}, false, false},
		{"a length beyond all bounds", []byte{'C', 0xff, 0xff, 0xff, 0xff}, false, false},
	} {
		if whole, expected := AnsweredIdle(tt.b); whole != tt.whole || expected != tt.expected {
			t.Errorf("%s: whole %v, expected %v", tt.name, whole, expected)
		}
	}
}
