package daemon

import (
	"os"
	"unsafe"
)

// HideArgument overwrites a command-line argument of this process, which every user of the machine can read in /proc,
// and replaces it in os.Args by a dash. Other strings that share the argument's memory change too: copy what is still
// needed before. It does nothing if there is no such argument.
func HideArgument(secret string) {
	for i, a := range os.Args {
		if a != secret || a == "" || a == "-" {
			continue
		}
		shown := unsafe.Slice(unsafe.StringData(a), len(a)) //nolint:gosec // the kernel shows this memory to everybody
		for j := range shown {
			shown[j] = '*'
		}
		os.Args[i] = "-"
	}
}
