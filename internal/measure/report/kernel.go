package report

import (
	"os"
	"path/filepath"
	"strings"
)

// KernelText returns the value of a kernel parameter, the file of that name below /proc/sys, without white space around
// it. If it cannot be read, KernelText returns the text of the error.
func KernelText(name string) string {
	text, err := os.ReadFile(filepath.Join("/proc/sys", name))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}
