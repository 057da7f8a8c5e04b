package regular

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(in("file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(in("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link": "file", "pipe behind a link": "pipe"} {
		if err := os.Symlink(in(to), in(name)); err != nil {
			t.Fatal(err)
		}
	}
	for path, refusal := range map[string]string{
		in("file"): "", in("link"): "",
		in("pipe"): "is not a file", in("pipe behind a link"): "is not a file", dir: "is not a file", "/dev/zero": "is not a file", in("absent"): "no such file",
	} {
		f, err := Open(path)
		if refusal != "" {
			if err == nil || !strings.Contains(err.Error(), refusal) {
				t.Errorf("%s: %v", path, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(f); err != nil || string(text) != "text" {
			t.Errorf("%s: %q, %v", path, text, err)
		}
		_ = f.Close()
	}
}
