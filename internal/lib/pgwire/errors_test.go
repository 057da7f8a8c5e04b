package pgwire

import (
	"bytes"
	"testing"
)

func TestErrorFieldTakesAnything(t *testing.T) {
	for _, b := range [][]byte{nil, {0}, {'C'}, []byte("C57P01"), []byte("SFATAL"), {'C', 0}, []byte("\x00C1\x00")} {
		_ = ErrorField(b, 'M')
	}
	if got := ErrorField([]byte("SFATAL\x00VFATAL\x00C57P01\x00Mx\x00\x00"), 'C'); got != "57P01" {
		t.Errorf("code %q", got)
	}
}

// FuzzErrorField reads errors of servers, which may have any form (CVE-2026-6666: one without SQLSTATE).
func FuzzErrorField(f *testing.F) {
	f.Add([]byte("SFATAL\x00C53300\x00Mtoo many\x00\x00"), byte('C'))
	f.Add([]byte("SFATAL\x00Mno state\x00\x00"), byte('C'))
	f.Add([]byte("SFATAL"), byte('C'))
	f.Add([]byte{}, byte('C'))
	f.Fuzz(func(t *testing.T, body []byte, field byte) {
		if got := ErrorField(body, field); len(got) > 0 && (field == 0 || !bytes.Contains(body, append([]byte{field}, got...))) {
			t.Fatalf("%q has no field %q of %q", body, field, got)
		}
	})
}
