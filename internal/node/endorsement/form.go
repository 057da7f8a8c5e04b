package endorsement

import (
	"bytes"
	"encoding/base64"
)

// signature begins the last member of the object that a signed value is. The signature is of the bytes of the object
// without that member.
const signature = `,"signature":"`

// join returns the value of a signed configuration.
func join(body, sig []byte) []byte {
	out := append(bytes.Clone(body[:len(body)-1]), signature...)
	out = base64.StdEncoding.AppendEncode(out, sig)
	return append(out, `"}`...)
}

// split returns what is signed of a value, and the signature; the whole value and nil if it has none.
func split(value []byte) (body, sig []byte) {
	at := bytes.LastIndex(value, []byte(signature))
	text, ends := bytes.CutSuffix(value, []byte(`"}`))
	if at < 0 || !ends || at+len(signature) > len(text) {
		return value, nil
	}
	sig, err := base64.StdEncoding.Strict().DecodeString(string(text[at+len(signature):]))
	if err != nil || len(sig) == 0 {
		return value, nil
	}
	return append(bytes.Clone(value[:at]), '}'), sig
}
