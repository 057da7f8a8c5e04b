package main

import (
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// site is the documentation, read.
type site struct {
	root  string
	pages []*page
	by    map[string]*page // by the path in the repository
	files map[string]bool  // what pages link to and is copied as it is, by the path in the repository
	nav   []group
}

// page is a document, or a file shown as text.
type page struct {
	path     string // in the repository
	url      string // in the site
	title    string
	headings []heading
	sections []section
	source   []byte
	parsed   *parsed
	body     template.HTML
}

// heading is a place in a page that a link can lead to.
type heading struct {
	Level    int
	ID, Text string
}

// section is what the search finds: the text below a heading.
type section struct {
	id, heading, text string
}

// group is a part of the navigation: a heading of docs/README.md, and the pages that it lists.
type group struct {
	Title string
	Pages []entry
}

type entry struct {
	Title string
	page  *page
}

// index is the page that the navigation is made from.
const index = "docs/README.md"

// load reads and parses the documents. Hidden directories hold forms, not pages.
func load(root string) (*site, error) {
	s := &site{root: root, by: map[string]*page{}, files: map[string]bool{}}
	for _, dir := range []string{".", "examples", "docs"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, name)
			if err != nil {
				return err
			}
			if d.IsDir() && dir == "." && rel != "." {
				return fs.SkipDir
			}
			if d.IsDir() || filepath.Ext(rel) != ".md" {
				return nil
			}
			text, err := os.ReadFile(name) //nolint:gosec // of the working tree
			if err != nil {
				return err
			}
			s.add(parse(filepath.ToSlash(rel), text))
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if s.by[index] == nil {
		return nil, fmt.Errorf("%s has no %s", root, index)
	}
	s.nav = s.navigation()
	return s, nil
}

func (s *site) add(p *page) {
	s.pages, s.by[p.path] = append(s.pages, p), p
}

// urlOf returns where a document is in the site: README.md is the index of its directory.
func urlOf(name string) string {
	dir, base := path.Split(name)
	if base == "README.md" {
		return dir + "index.html"
	}
	return dir + strings.TrimSuffix(base, ".md") + ".html"
}

// relative returns the link from one place of the site to another.
func relative(from, to string) string {
	up := strings.Count(from, "/")
	a, b := strings.Split(from, "/"), strings.Split(to, "/")
	same := 0
	for same < up && same < len(b)-1 && a[same] == b[same] {
		same++
	}
	return strings.Repeat("../", up-same) + strings.Join(b[same:], "/")
}

// link points every link of every page at the site, and renders the pages. Files that are shown as text join the pages
// while it goes on. The errors are those of all pages.
func (s *site) link() error {
	var problems []error
	for i := 0; i < len(s.pages); i++ {
		p := s.pages[i]
		if p.parsed == nil {
			continue
		}
		if err := p.parsed.resolve(func(to string) (string, error) { return s.target(p, to) }); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", p.path, err))
		}
		body, err := p.parsed.html()
		if err != nil {
			return fmt.Errorf("%s: %w", p.path, err)
		}
		p.body = body
	}
	return errors.Join(problems...)
}

// target returns where a link of a page leads in the site.
func (s *site) target(from *page, to string) (string, error) {
	if strings.Contains(to, "://") {
		return to, nil
	}
	file, anchor, _ := strings.Cut(to, "#")
	name := from.path
	if file != "" {
		name = path.Join(path.Dir(from.path), file)
	}
	p, err := s.find(name)
	if err != nil {
		return "", fmt.Errorf("link to %s: %w", to, err)
	}
	if p == nil { // a file, copied as it is
		return relative(from.url, name), nil
	}
	if anchor == "" {
		return relative(from.url, p.url), nil
	}
	if !slices.ContainsFunc(p.headings, func(h heading) bool { return h.ID == anchor }) {
		return "", fmt.Errorf("link to %s: %s has no such heading", to, p.path)
	}
	if p == from {
		return "#" + anchor, nil
	}
	return relative(from.url, p.url) + "#" + anchor, nil
}

// asIs are files that a browser shows by itself.
var asIs = []string{".webp", ".png", ".svg", ".html"}

// maxText is the largest file that is shown as a page.
const maxText = 512 << 10

// find returns the page of a path: a document, or one made of a file or a directory. It is nil for a file that is
// copied.
func (s *site) find(name string) (*page, error) {
	if p := s.by[name]; p != nil {
		return p, nil
	}
	info, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(name)))
	switch {
	case err != nil || strings.HasPrefix(name, "../"):
		return nil, errors.New("no such file")
	case info.IsDir():
		if p := s.by[name+"/README.md"]; p != nil {
			return p, nil
		}
		return s.listing(name)
	case slices.Contains(asIs, path.Ext(name)):
		s.files[name] = true
		return nil, nil
	case info.Size() > maxText:
		return nil, fmt.Errorf("a file of %d bytes is too large for a page", info.Size())
	}
	text, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(name)))
	if err != nil {
		return nil, err
	}
	p := &page{path: name, url: name + ".html", title: path.Base(name)}
	p.body = template.HTML("<h1>" + template.HTMLEscapeString(name) + "</h1>\n<pre><code>" + template.HTMLEscapeString(string(text)) + "</code></pre>") //nolint:gosec // escaped
	s.add(p)
	return p, nil
}

// listing makes a page of a directory that has no README.md.
func (s *site) listing(dir string) (*page, error) {
	entries, err := os.ReadDir(filepath.Join(s.root, filepath.FromSlash(dir)))
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "# %s\n\n", dir)
	for _, e := range entries {
		fmt.Fprintf(&text, "- [%s](%s)\n", e.Name(), e.Name())
	}
	p := parse(dir+"/README.md", []byte(text.String()))
	s.add(p)
	return p, nil
}
