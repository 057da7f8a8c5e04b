package report

import (
	"os"
	"path/filepath"
	"strings"
)

func KernelText(name string) string {
	text, err := os.ReadFile(filepath.Join("/proc/sys", name))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}
