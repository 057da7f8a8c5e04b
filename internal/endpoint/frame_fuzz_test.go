package endpoint

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"testing"
)

// FuzzReadFrame reads messages of strangers: a join message, and the verdict that a dialling node reads. A length that
// lies costs no more memory than is allowed.
func FuzzReadFrame(f *testing.F) {
	frame := func(text string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
	}
	f.Add(frame(`{"token_id":"x","proof":"AAAA","request":"e30="}`))
	f.Add(frame(`{"grant":{"cert":"x"},"error":{"code":"refused"}}`))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 1, 0, 0, '{'})
	f.Fuzz(func(t *testing.T, b []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var msg joinMessage
		r := bytes.NewReader(b)
		err := readFrame(r, &msg, maxJoinRequest)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 64*maxJoinRequest {
			t.Errorf("%d bytes cost %d bytes of memory", len(b), n)
		}
		if err == nil && len(b)-r.Len() != 4+int(binary.BigEndian.Uint32(b)) {
			t.Error("more or less than the message was read")
		}
		var rep joinReply
		_ = readFrame(bytes.NewReader(b), &rep, maxJoinRequest)
	})
}
