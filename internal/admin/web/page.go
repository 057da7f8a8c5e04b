package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/lib/jsbundle"
)

//go:embed page
var pageFS embed.FS

//go:embed openapi.json
var openAPIDocument []byte

// file is a file of the page.
type file struct {
	kind, tag    string
	plain, small []byte
}

// kinds are the types of the files that a page may have.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
}

// entry is the module by which the page begins. It is served with all that it imports, in one file: the first screen
// needs all of it.
const entry = "app.js"

// files returns the files of the page by their paths.
var files = sync.OnceValue(func() map[string]file {
	out, modules := map[string]file{}, map[string]string{}
	_ = fs.WalkDir(pageFS, "page", func(name string, d fs.DirEntry, err error) error { // what is embedded can be read
		if err != nil || d.IsDir() {
			return err
		}
		b, err := pageFS.ReadFile(name)
		if err != nil {
			return err
		}
		if name = strings.TrimPrefix(name, "page"); path.Ext(name) == ".js" {
			modules[name[1:]] = string(b)
		} else {
			out[name] = newFile(name, b)
		}
		return nil
	})
	script, err := jsbundle.Bundle(modules, entry)
	assert.That(err == nil, "the page's modules make one script: %v", err)
	out["/"+entry] = newFile(entry, []byte(script))
	return out
})

// newFile returns a file with its tag, also compressed.
func newFile(name string, b []byte) file {
	var small bytes.Buffer
	z, _ := gzip.NewWriterLevel(&small, gzip.BestCompression)
	_, _ = z.Write(b)
	_ = z.Close()
	sum := sha256.Sum256(b)
	return file{kinds[path.Ext(name)], `"` + hex.EncodeToString(sum[:8]) + `"`, b, small.Bytes()}
}

// page serves a file of the page; / is its beginning.
func page(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Path
	if name == "/" {
		name = "/index.html"
	}
	f, ok := files()[name]
	if !ok {
		refuse(w, http.StatusNotFound, &console.Error{State: "42704", Message: "there is nothing at this path"})
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Cache-Control", "no-cache") // it is asked for each time, and sent if it has changed
	h.Set("ETag", f.tag)
	h.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := f.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = f.small
	}
	_, _ = w.Write(body) // it fails only if the client has gone
}

// openAPI serves the description of the API.
func (s *Server) openAPI(w http.ResponseWriter, _ *http.Request, _ *session) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openAPIDocument) // it fails only if the client has gone
}
