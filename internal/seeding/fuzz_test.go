package seeding

import (
	"archive/tar"
	"bytes"
	"io"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzManifest: whatever the text, parsing ends, and only a manifest that proves itself is taken.
func FuzzManifest(f *testing.F) {
	for _, major := range []int{15, 17} {
		f.Add((&fakeSource{major: major, entries: cluster()}).buildManifest())
	}
	f.Add("{}\n")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := parseManifest([]byte(text))
		if err == nil && !strings.Contains(text, `"Manifest-Checksum"`) && !strings.Contains(strings.ToLower(text), "manifest-checksum") {
			t.Errorf("taken without a checksum: %v", m)
		}
	})
}

// FuzzEntryName: no archive, however malformed, names a place outside the directory it is unpacked into.
func FuzzEntryName(f *testing.F) {
	f.Add(buildTar(cluster()))
	f.Add(buildTar([]entry{{name: "../x", body: "x"}, {name: "/x", kind: tar.TypeDir}}))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := tar.NewReader(bytes.NewReader(text))
		for {
			h, err := r.Next()
			if err != nil {
				return
			}
			name, err := entryName(h)
			if err != nil {
				continue
			}
			if p := filepath.Join("/data", name); !strings.HasPrefix(p, "/data/") {
				t.Errorf("%q leads to %s", name, p)
			}
			if _, err := io.Copy(io.Discard, io.LimitReader(r, 1<<20)); err != nil {
				return
			}
		}
	})
}
