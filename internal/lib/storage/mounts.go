package storage

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// mount is a line of /proc/self/mountinfo.
type mount struct {
	dev     string // major:minor
	at      string
	fs      string
	source  string
	options string // of the file system
}

// read returns a file, which is refused if it is larger than one that the kernel writes.
func (r *Reader) read(p string) ([]byte, error) {
	f, err := os.Open(r.path(p))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxText {
		return nil, fmt.Errorf("%s is longer than %d bytes", p, maxText)
	}
	return b, nil
}

func (r *Reader) mounts() ([]mount, error) {
	b, err := r.read("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMounts(string(b)), nil
}

// parseMounts reads the text of mountinfo. A line that it does not understand is left out.
func parseMounts(text string) (out []mount) {
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 2 {
			continue
		}
		m := mount{dev: f[2], at: unescape(f[4]), fs: g[0], source: unescape(g[1])}
		if len(g) > 2 {
			m.options = g[2]
		}
		out = append(out, m)
	}
	return out
}

// unescape undoes the octal escapes of the kernel, such as \040 for a space.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountOf returns the mount that has a directory: of those above it the deepest, and of several at one place the last.
func mountOf(all []mount, dir string) (best mount, ok bool) {
	for _, m := range all {
		above := m.at == "/" || dir == m.at || strings.HasPrefix(dir, m.at+"/")
		if above && len(m.at) >= len(best.at) {
			best, ok = m, true
		}
	}
	return best, ok
}
