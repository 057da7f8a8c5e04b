package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	// MaxBytes is how many bytes a bundle has at most before it is compressed.
	MaxBytes = 32 << 20
	// MaxPart is how many bytes one part has at most.
	MaxPart = 2 << 20
	// reserve is what remains for the list of the parts, which is written last.
	reserve = 256 << 10
)

// Part is one file of a bundle, or one that is missing from it.
type Part struct {
	Name    string `json:"name"`
	Bytes   int    `json:"bytes"`
	Removed int    `json:"secrets_removed,omitempty"` // places at which something was removed
	Cut     string `json:"cut,omitempty"`             // what was left out for the sake of the size
	Missing string `json:"missing,omitempty"`         // the reason, for a part that could not be read
}

// Bundle is a tar.gz that is being written. Everything that is added passes its Redactor.
type Bundle struct {
	Redactor *Redactor
	Parts    []Part

	folder string // of all files in the archive
	now    time.Time
	gz     *gzip.Writer
	tar    *tar.Writer
	left   int
	err    error // the first error of a write
}

// NewBundle begins a bundle on w, whose files are in the folder. The caller calls Close, and then closes w.
func NewBundle(w io.Writer, folder string, now time.Time) *Bundle {
	gz := gzip.NewWriter(w)
	return &Bundle{Redactor: &Redactor{}, folder: folder, now: now, gz: gz, tar: tar.NewWriter(gz), left: MaxBytes - reserve}
}

// Text adds a text. Of a text that is too long it keeps the beginning.
func (b *Bundle) Text(name string, data []byte) {
	b.keep(name, data, func(d []byte, most int) []byte { return d[:most] }, "the end")
}

// Log adds a log. Of a log that is too long it keeps the end, from the beginning of a line.
func (b *Bundle) Log(name string, data []byte) {
	b.keep(name, data, func(d []byte, most int) []byte {
		d = d[len(d)-most:]
		if i := bytes.IndexByte(d, '\n'); i >= 0 {
			d = d[i+1:]
		}
		return d
	}, "the beginning")
}

// ServerLog is Log for a log of PostgreSQL. Statements and values of rows are removed, unless they are to be kept.
func (b *Bundle) ServerLog(name string, data []byte, statements bool) {
	if !statements {
		data = b.Redactor.Statements(data)
	}
	b.Log(name, data)
}

// JSON adds a value as indented JSON.
func (b *Bundle) JSON(name string, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		b.Missing(name, err)
		return
	}
	was := b.Redactor.Removed
	clean, err := b.Redactor.JSON(raw)
	if err != nil {
		b.Missing(name, err)
		return
	}
	b.write(name, clean, func(d []byte, most int) []byte { return d[:most] }, Part{Name: name, Removed: b.Redactor.Removed - was, Cut: "the end"})
}

// Missing notes that a part could not be had.
func (b *Bundle) Missing(name string, err error) {
	why := string(b.Redactor.Text([]byte(err.Error())))
	b.Parts = append(b.Parts, Part{Name: name, Missing: why})
}

func (b *Bundle) keep(name string, data []byte, cut func([]byte, int) []byte, without string) {
	was := b.Redactor.Removed
	clean := b.Redactor.Text(data)
	b.write(name, clean, cut, Part{Name: name, Removed: b.Redactor.Removed - was, Cut: without})
}

// write adds clean data, shortened by cut to what there is room for. p.Cut says which part is missing then.
func (b *Bundle) write(name string, data []byte, cut func([]byte, int) []byte, p Part) {
	const perFile = 2 << 10 // headers and padding
	most := max(min(MaxPart, b.left-perFile), 0)
	if len(data) > most {
		p.Cut = fmt.Sprintf("%s is left out: %d bytes were read, and %d had room", p.Cut, len(data), most)
		data = cut(data, most)
	} else {
		p.Cut = ""
	}
	p.Bytes = len(data)
	b.Parts = append(b.Parts, p)
	b.left -= len(data) + perFile
	b.file(name, data)
}

func (b *Bundle) file(name string, data []byte) {
	h := &tar.Header{Name: b.folder + "/" + name, Mode: 0o600, Size: int64(len(data)), ModTime: b.now, Format: tar.FormatPAX}
	if b.err == nil {
		b.err = b.tar.WriteHeader(h)
	}
	if b.err == nil {
		_, b.err = b.tar.Write(data)
	}
}

// Close writes README.txt, which lists the parts, and ends the archive. It returns the first error of a write.
func (b *Bundle) Close() error {
	var s strings.Builder
	fmt.Fprintf(&s, "A support bundle of Coterie, made %s.\n\n", b.now.UTC().Format(time.RFC3339))
	s.WriteString("Passwords, keys, tokens and verifiers were replaced by " + removed + ".\n" +
		"What your own log lines call by other names is still in here: look through it before you give it away.\n\n")
	for _, p := range b.Parts {
		switch {
		case p.Missing != "":
			fmt.Fprintf(&s, "%-44s missing: %s\n", p.Name, p.Missing)
		default:
			fmt.Fprintf(&s, "%-44s %9d bytes, %d removed%s\n", p.Name, p.Bytes, p.Removed, prefixed("; ", p.Cut))
		}
	}
	text := s.String()
	b.file("README.txt", []byte(text[:min(len(text), reserve/2)]))
	return errors.Join(b.err, b.tar.Close(), b.gz.Close())
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}
