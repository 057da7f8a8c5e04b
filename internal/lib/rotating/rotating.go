package rotating

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
)

const (
	// MaxSize is the size in bytes from which on a log is replaced by a new one.
	MaxSize = 64 << 20
	// MaxOld is how many old files of a log are kept, as log.1 (the youngest) to log.4.
	MaxOld = 4
	// over is how many bytes more a file may get while no line ends.
	over = 1 << 20
)

// File is a log. Any goroutine may call its methods.
type File struct {
	path string
	most int64 // MaxSize, smaller in tests

	mu   sync.Mutex // guards the rest
	file *os.File
	size int64
}

// replaced and failed count the files of this process that were replaced, and the attempts that failed.
var replaced, failed atomic.Uint64

// Counts returns how many files this process has replaced since its start, and how often it could not.
func Counts() (files, failures uint64) { return replaced.Load(), failed.Load() }

// Open opens a log for appending, and makes it if there is none.
func Open(path string) (*File, error) {
	f := &File{path: path, most: MaxSize}
	return f, f.open()
}

// open opens the file. The caller holds mu, or nobody else has f yet.
func (f *File) open() error {
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	st, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	if f.file != nil {
		_ = f.file.Close()
	}
	f.file, f.size = file, st.Size()
	return nil
}

// Write appends b. Before that it begins a new file, if the present one is large and ends with a line. A file that
// cannot be replaced is written to nevertheless.
func (f *File) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.file.Write(b)
	f.size += int64(n)
	if f.size >= f.most && (bytes.HasSuffix(b, []byte("\n")) || f.size >= f.most+over) {
		f.replace()
	}
	return n, err
}

// replace begins a new file, unless another program has emptied the present one. If that fails it is tried again after
// some more bytes.
func (f *File) replace() {
	st, err := f.file.Stat()
	if err == nil && st.Size() < f.most {
		f.size = st.Size()
		return
	}
	if f.free() != nil || f.open() != nil {
		failed.Add(1)
		f.size = f.most - over
		return
	}
	replaced.Add(1)
}

// free makes the name of the log free. It is free already if somebody has moved the file, or if an earlier attempt
// moved it and could not open a new one: to shift then would push the old files out, and fail each time.
func (f *File) free() error {
	if _, err := os.Lstat(f.path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return Shift(f.path)
}

// Close closes the log.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.Close()
}

// Shift makes a log the youngest of the old ones, and drops the oldest of them. It is for logs that another process
// writes, before that process begins.
func Shift(path string) error {
	for i := MaxOld - 1; i > 0; i-- {
		if err := os.Rename(old(path, i), old(path, i+1)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return os.Rename(path, old(path, 1))
}

// ShiftLarge is Shift for a log that is large. A log that cannot be shifted stays.
func ShiftLarge(path string) {
	if st, err := os.Stat(path); err == nil && st.Size() >= MaxSize {
		_ = Shift(path)
	}
}

func old(path string, i int) string { return fmt.Sprintf("%s.%d", path, i) }
