package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOpenLog holds that the queued lines are in the file once the log has ended.
func TestOpenLog(t *testing.T) {
	dir := t.TempDir()
	log, err := OpenLog(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	log.Info("hello", "n", 1)
	log.Close()
	if b, err := os.ReadFile(filepath.Join(dir, "log", "agent.log")); err != nil || !strings.Contains(string(b), "msg=hello n=1") {
		t.Errorf("the log has %q, %v", b, err)
	}
}
