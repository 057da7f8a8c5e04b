package main

import (
	"bytes"
	"embed"
	"encoding/json"
	"html/template"
	"os"
	"path"
	"path/filepath"
	"strings"
)

//go:embed look
var look embed.FS

var layout = template.Must(template.ParseFS(look, "look/page.html"))

// weights say how early the search shows pages: first what helps, then what explains, then what the inside is like,
// and last what was decided and measured. The longest beginning of a path decides.
var weights = map[string]int{
	"": 4, "docs/troubleshooting.md": 8, "docs/how-to/": 6, "docs/tutorials/": 6, "docs/internals/": 2, "ARCHITECTURE.md": 2, "CONTRIBUTING.md": 2,
	"docs/adr/": 1, "docs/internals/notes/": 1, "docs/results/": 1, "CHANGELOG.md": 1, "docs/mutants.md": 1,
}

// navigation returns the parts of docs/README.md with the pages that begin their rows.
func (s *site) navigation() (nav []group) {
	seen := map[*page]bool{}
	for _, l := range s.by[index].parsed.links() {
		file, _, _ := strings.Cut(l.to, "#")
		p := s.by[path.Join(path.Dir(index), file)]
		if p == nil || !l.leading || seen[p] {
			continue
		}
		seen[p] = true
		if len(nav) == 0 || nav[len(nav)-1].Title != l.under {
			nav = append(nav, group{Title: l.under})
		}
		last := &nav[len(nav)-1]
		last.Pages = append(last.Pages, entry{strings.ToUpper(l.text[:1]) + l.text[1:], p})
	}
	return nav
}

// shown is what the layout is given.
type shown struct {
	Title, Root, Source string
	Body                template.HTML
	Nav                 []shownGroup
	Contents            []heading
	Before, After       *shownEntry
}

type shownGroup struct {
	Title string
	Pages []shownEntry
}

type shownEntry struct {
	Title, URL string
	Current    string // for aria-current
}

// write makes the directory of the site.
func (s *site) write(out string) error {
	for _, p := range s.pages {
		var b bytes.Buffer
		if err := layout.Execute(&b, s.show(p)); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(out, filepath.FromSlash(p.url)), b.Bytes()); err != nil {
			return err
		}
	}
	for name := range s.files {
		content, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(out, filepath.FromSlash(name)), content); err != nil {
			return err
		}
	}
	for _, name := range []string{"style.css", mark, "icon.svg"} {
		content, err := look.ReadFile("look/" + name)
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(out, name), content); err != nil {
			return err
		}
	}
	words, err := s.words()
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(out, "words.js"), words)
}

func writeFile(name string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil { //nolint:gosec // for a web server to read
		return err
	}
	return os.WriteFile(name, content, 0o644) //nolint:gosec // for a web server to read
}

// show returns a page as the layout wants it.
func (s *site) show(p *page) shown {
	v := shown{Title: p.title, Root: strings.Repeat("../", strings.Count(p.url, "/")), Source: p.path, Body: p.body}
	for _, h := range p.headings {
		if h.Level == 2 {
			v.Contents = append(v.Contents, h)
		}
	}
	at := s.place(p)
	var row []entry
	for _, g := range s.nav {
		shownAs := shownGroup{Title: g.Title}
		for _, e := range g.Pages {
			current := ""
			switch {
			case e.page == p:
				current = "page"
			case len(row) == at:
				current = "true"
			}
			row = append(row, e)
			shownAs.Pages = append(shownAs.Pages, shownEntry{e.Title, relative(p.url, e.page.url), current})
		}
		v.Nav = append(v.Nav, shownAs)
	}
	if at < 0 || row[at].page != p {
		return v
	}
	if at > 0 {
		v.Before = &shownEntry{Title: row[at-1].Title, URL: relative(p.url, row[at-1].page.url)}
	}
	if at < len(row)-1 {
		v.After = &shownEntry{Title: row[at+1].Title, URL: relative(p.url, row[at+1].page.url)}
	}
	return v
}

// place returns the position of a page in the navigation, or that of the nearest index above it, or -1.
func (s *site) place(p *page) int {
	at, best, n := -1, 0, 0
	for _, g := range s.nav {
		for _, e := range g.Pages {
			dir := path.Dir(e.page.path) + "/"
			switch {
			case e.page == p:
				return n
			case path.Base(e.page.path) == "README.md" && strings.HasPrefix(p.path, dir) && len(dir) > best && dir != "docs/":
				at, best = n, len(dir)
			}
			n++
		}
	}
	return at
}

// words returns the search's data: pages as URL, title and weight; sections as page, id, heading and text. It is a
// script, since a page that was opened from a disk may read no file.
func (s *site) words() ([]byte, error) {
	type row = []any
	data := struct {
		Pages    []row `json:"pages"`
		Sections []row `json:"sections"`
	}{}
	for _, p := range s.pages {
		if len(p.sections) == 0 {
			continue
		}
		for _, sec := range p.sections {
			data.Sections = append(data.Sections, row{len(data.Pages), sec.id, sec.heading, sec.text})
		}
		data.Pages = append(data.Pages, row{p.url, p.title, weight(p.path)})
	}
	text, err := json.Marshal(data)
	if err != nil {
		return nil, err
	}
	return append(append([]byte("window.words = "), text...), ";\n"...), nil
}

func weight(name string) int {
	longest := ""
	for begin := range weights {
		if strings.HasPrefix(name, begin) && len(begin) > len(longest) {
			longest = begin
		}
	}
	return weights[longest]
}
