package rotating

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func opened(t *testing.T, most int64) (f *File, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "x.log")
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f.most = most
	t.Cleanup(func() { _ = f.Close() })
	return f, path
}

// TestRotates holds that no file is larger than it may be, that the number of files is bounded, and that the lines that
// are left are the last ones, whole and in order.
func TestRotates(t *testing.T) {
	f, path := opened(t, 100)
	before, _ := Counts()
	const lines = 1000
	for i := range lines {
		if n, err := fmt.Fprintf(f, "line %d\n", i); err != nil || n == 0 {
			t.Fatal(n, err)
		}
	}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) != MaxOld+1 {
		t.Fatal(files, err)
	}
	if now, _ := Counts(); now < before+uint64(MaxOld) {
		t.Errorf("%d files are counted", now-before)
	}
	var all strings.Builder
	for i := MaxOld; i >= 0; i-- {
		name := path
		if i > 0 {
			name = old(path, i)
		}
		text, err := os.ReadFile(name)
		if err != nil || len(text) > 110 {
			t.Errorf("%s: %d bytes, %v", name, len(text), err)
		}
		all.Write(text)
	}
	left := strings.Split(strings.TrimSuffix(all.String(), "\n"), "\n")
	for i, l := range left {
		if want := fmt.Sprintf("line %d", lines-len(left)+i); l != want {
			t.Errorf("%q, want %q", l, want)
		}
	}
}

// TestLinesStayWhole holds that a file is not replaced in the middle of a line.
func TestLinesStayWhole(t *testing.T) {
	f, path := opened(t, 10)
	for _, piece := range []string{"a long beginning ", "of a line", " and its end\n", "next\n"} {
		if _, err := f.Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	first, err1 := os.ReadFile(old(path, 1))
	next, err2 := os.ReadFile(path)
	if err1 != nil || err2 != nil || string(first) != "a long beginning of a line and its end\n" || string(next) != "next\n" {
		t.Errorf("%q %v, %q %v", first, err1, next, err2)
	}
}

// TestEmptiedByAnother holds that a file which another program empties (logrotate's copytruncate) is not replaced.
func TestEmptiedByAnother(t *testing.T) {
	f, path := opened(t, 20)
	_, _ = f.Write([]byte("0123456789\n"))
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	_, _ = f.Write([]byte("0123456789\n"))
	if text, err := os.ReadFile(path); err != nil || string(text) != "0123456789\n" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := os.Stat(old(path, 1)); err == nil {
		t.Error("it was replaced")
	}
}

// TestCannotReplace holds that lines are kept where the file cannot be replaced.
func TestCannotReplace(t *testing.T) {
	f, path := opened(t, 10)
	if err := os.MkdirAll(filepath.Join(old(path, 1), "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(old(path, 2), "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(old(path, 3), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(old(path, 4), "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := f.Write([]byte("0123456789\n")); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(path); err != nil || len(text) != 55 {
		t.Errorf("%q, %v", text, err)
	}
}

// TestNameThatIsFree holds that a log goes on in a new file if its file was moved: by somebody else, or by a
// replacement that could not open a new one. No old file is lost for that.
func TestNameThatIsFree(t *testing.T) {
	for _, moved := range []string{"mine", "1"} {
		f, path := opened(t, 20)
		if err := os.WriteFile(old(path, 2), []byte("kept\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path, path+"."+moved); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := f.Write([]byte("0123456789\n")); err != nil {
				t.Fatal(err)
			}
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != "0123456789\n" {
			t.Errorf("moved to %s: the log has %q, %v", moved, text, err)
		}
		if text, err := os.ReadFile(old(path, 2)); err != nil || string(text) != "kept\n" {
			t.Errorf("moved to %s: an old file has %q, %v", moved, text, err)
		}
	}
}

func TestShiftLarge(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	ShiftLarge(path) // there is none
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if ShiftLarge(path); os.Truncate(path, MaxSize) != nil {
		t.Fatal("a short log was shifted")
	}
	ShiftLarge(path)
	if _, err := os.Stat(path); err == nil {
		t.Error("a large log was not shifted")
	}
}
