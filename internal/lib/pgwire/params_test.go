package pgwire

import (
	"testing"
)

func TestParseBool(t *testing.T) {
	for in, want := range map[string]string{
		"t": "on", "TRU": "on", "true": "on", "y": "on", "Yes": "on", "on": "on", "1": "on",
		"f": "off", "false": "off", "n": "off", "NO": "off", "of": "off", "OFF": "off", "0": "off",
		"o": "bad", "": "bad", "truee": "bad", "2": "bad", "database": "bad", "ok": "bad",
	} {
		on, ok := ParseBool(in)
		got := "bad"
		if ok {
			got = map[bool]string{true: "on", false: "off"}[on]
		}
		if got != want {
			t.Errorf("%q is %s, want %s", in, got, want)
		}
	}
}
