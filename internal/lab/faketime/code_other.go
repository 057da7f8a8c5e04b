//go:build !amd64

package faketime

const machine = ""

var (
	code    []byte
	entries map[string]uint64
)

const jumpSize = 0

func jump(uint64, uint64) []byte { return nil }
