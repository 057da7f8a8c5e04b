package fileio

import "os"

// LastOpen keeps the last file of one goroutine open. The chunks of a file are requested in a row, and opening a file
// on a path that must not lead out of a directory takes several calls. The name may come to mean another file
// meanwhile; the open one existed inside the window, as the invariant requires.
type LastOpen struct {
	of    Entry
	flags int
	f     *os.File
}

// Open returns the file of that place, opened with these flags, which is valid until the next call.
func (h *LastOpen) Open(of Entry, flags int, open func() (*os.File, error)) (*os.File, error) {
	if h.f != nil && h.of == of && h.flags == flags {
		return h.f, nil
	}
	if err := h.Close(); err != nil {
		return nil, err
	}
	f, err := open()
	if err != nil {
		return nil, err
	}
	h.of, h.flags, h.f = of, flags, f
	return f, nil
}

// Close closes the file and returns the result of the last writes, which some file systems report late.
func (h *LastOpen) Close() error {
	if h.f == nil {
		return nil
	}
	err := h.f.Close()
	h.f = nil
	return err
}

// Entry names an entry of a copy.
type Entry struct {
	Space uint32
	Name  string
}
