// Package regular opens files whose paths an administrator has written down, and that may turn out to be something
// else.
package regular

import (
	"fmt"
	"os"
	"syscall"
)

// Open opens a regular file, or a link to one, for reading. Anything else is an error, at once: a named pipe would be
// waited for, and a device may have no end.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", path)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
