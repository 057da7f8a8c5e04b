package web

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/lib/jsbundle"
	"github.com/coteriedb/coterie/internal/lib/retry"
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

// lookConsoles is how often the members are asked where they serve the page.
const lookConsoles = 15 * time.Second

// hostPort is an address of a console that a page may be led to, and named are those of them that a policy can name:
// it has no form for an address of IPv6.
var (
	hostPort = regexp.MustCompile(`^(\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z.-]{1,253}):[0-9]{1,5}$`)
	named    = regexp.MustCompile(`^[0-9A-Za-z.-]+:[0-9]+$`)
)

// consoles are the addresses at which members serve the page, as each said over its own connection last: an address is
// needed once the page's own node answers no more, and a thief who writes to the quorum's store must not choose it.
type consoles struct {
	mu sync.Mutex // guards of
	of map[ag.ReplicaID]string
}

// at returns the address of a member's console; "" if none is known.
func (c *consoles) at(id ag.ReplicaID) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[id]
}

// note takes what the members that answer say, and forgets those that are not in the group any more.
func (c *consoles) note(said map[ag.ReplicaID]string, g ag.Group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := map[ag.ReplicaID]string{}
	for _, r := range g.Replicas {
		if at, answers := said[r.ID]; !answers {
			next[r.ID] = c.of[r.ID]
		} else if hostPort.MatchString(at) {
			next[r.ID] = at
		}
	}
	c.of = next
}

// knowConsoles asks the members again and again where they serve the page, until ctx is done; more often at first, when
// not all of them answer yet.
func (s *Server) knowConsoles(ctx context.Context) {
	for pause := time.Second; ; pause = min(2*pause, lookConsoles) {
		s.caught("looking for the other consoles", func() { s.lookForConsoles(ctx) })
		if retry.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// lookForConsoles asks the members where they serve the page.
func (s *Server) lookForConsoles(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, eventsLimit)
	defer cancel()
	r, err := console.NewSession(s.c.Backend(), reader).Run(ctx, "SELECT name, coalesce(console, '') FROM coterie.replicas WHERE connected")
	if err != nil {
		return // and keep what is known
	}
	said := map[ag.ReplicaID]string{}
	for _, row := range r.Rows {
		if len(row) == 2 {
			said[ag.ReplicaID(fmt.Sprint(row[0]))] = fmt.Sprint(row[1])
		}
	}
	s.consoles.note(said, s.c.Group())
}

// pagePolicy is the policy of the page. It may ask one thing elsewhere: whether the console of another member answers.
func (s *Server) pagePolicy() string {
	others := ""
	for _, r := range s.c.Group().Replicas {
		if at := s.consoles.at(r.ID); r.ID != s.c.Self && named.MatchString(at) {
			others += " https://" + at + "/here"
		}
	}
	return strings.Replace(policy, "connect-src 'self'", "connect-src 'self'"+others, 1)
}

// here tells the page of another member that this node serves its own. It takes no cookie and has no body.
func here(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cross-Origin-Resource-Policy", "cross-origin")
	w.WriteHeader(http.StatusNoContent)
}

// page serves a file of the page; / is its beginning.
func (s *Server) page(w http.ResponseWriter, r *http.Request) {
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
	if name == "/index.html" {
		h.Set("Content-Security-Policy", s.pagePolicy())
	}
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
