package pgwire

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

func TestStartupMessageReadsBack(t *testing.T) {
	want := []Parameter{{"user", "u"}, {"options", ""}, {"application_name", "a b"}}
	packet := StartupMessage(want...)
	body, err := ReadPacket(bytes.NewReader(packet), len(packet))
	if err != nil {
		t.Fatal(err)
	}
	if v := binary.BigEndian.Uint32(body); v != Protocol3 {
		t.Errorf("version %d", v)
	}
	got, bad := SplitParameters(body[4:])
	if bad != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, bad)
	}
}

func TestErrorReadsBack(t *testing.T) {
	e := &Error{Reason: "r", Code: StateTooMany, Message: "m", Detail: "d", Hint: "h"}
	typ, body, err := ReadMessage(bytes.NewReader(e.Encode()), MaxControl)
	if err != nil || typ != 'E' {
		t.Fatal(typ, err)
	}
	for field, want := range map[byte]string{'S': "FATAL", 'V': "FATAL", 'C': StateTooMany, 'M': "m", 'D': "d", 'H': "h"} {
		if got := ErrorField(body, field); got != want {
			t.Errorf("field %q is %q, want %q", field, got, want)
		}
	}
}
