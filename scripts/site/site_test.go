package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// Bounds of the site, in bytes.
const (
	maxSite  = 12 << 20
	maxPage  = 400 << 10
	maxWords = 1536 << 10
	maxLook  = 40 << 10
)

// document is what a page of the site has for others to lead to, and where it leads.
type document struct {
	ids          map[string]bool
	links, loads []string
}

// read parses a page as XML: one that is not well-formed is an error.
func read(text io.Reader) (d document, err error) {
	d.ids = map[string]bool{}
	x := xml.NewDecoder(text)
	x.Entity = map[string]string{}
	for {
		token, err := x.Token()
		if errors.Is(err, io.EOF) {
			return d, nil
		}
		if err != nil {
			return d, err
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		for _, a := range e.Attr {
			switch a.Name.Local {
			case "id":
				if d.ids[a.Value] {
					return d, errors.New("two elements have the id " + a.Value)
				}
				d.ids[a.Value] = true
			case "href":
				if e.Name.Local == "a" {
					d.links = append(d.links, a.Value)
				} else {
					d.loads = append(d.loads, a.Value)
				}
			case "src":
				d.loads = append(d.loads, a.Value)
			case "style", "onclick", "onload":
				return d, errors.New("the policy of the page forbids the attribute " + a.Name.Local)
			}
		}
	}
}

// made builds the site of this repository.
func made(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "site")
	n, err := build(root, out)
	if err != nil {
		t.Fatal(err)
	}
	if n < 100 {
		t.Fatalf("the site has only %d pages", n)
	}
	return out
}

// TestSite holds that every page of the site is well-formed, that every link and every anchor leads somewhere, that
// nothing is loaded from elsewhere, and that the site stays small.
func TestSite(t *testing.T) {
	out := made(t)
	all, sizes, total := map[string]document{}, map[string]int64{}, int64(0)
	err := filepath.WalkDir(out, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(out, name)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		sizes[rel], total = info.Size(), total+info.Size()
		if filepath.Ext(name) != ".html" || rel == "docs/results/bench-all/report.html" { // made by coterie bench
			return nil
		}
		text, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = text.Close() }()
		if all[rel], err = read(text); err != nil {
			t.Errorf("%s: %v", rel, err)
		}
		if info.Size() > maxPage && !strings.HasPrefix(rel, "docs/results/") {
			t.Errorf("%s has %d bytes, more than %d", rel, info.Size(), maxPage)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if total > maxSite || sizes["words.js"] > maxWords || sizes["style.css"]+sizes["site.js"] > maxLook {
		t.Errorf("the site has %d bytes, the words %d, the look %d", total, sizes["words.js"], sizes["style.css"]+sizes["site.js"])
	}
	links := 0
	for from, d := range all {
		for _, to := range append(d.links, d.loads...) {
			links++
			if strings.Contains(to, "://") {
				continue
			}
			file, anchor, _ := strings.Cut(to, "#")
			target := path.Join(path.Dir(from), file)
			if file == "" {
				target = from
			}
			if _, ok := sizes[target]; !ok {
				t.Errorf("%s: there is no %s", from, to)
			} else if anchor != "" && !all[target].ids[anchor] {
				t.Errorf("%s: there is no %s in the page", from, to)
			}
		}
		for _, to := range d.loads {
			if strings.Contains(to, "://") || strings.HasPrefix(to, "//") {
				t.Errorf("%s: loads %s", from, to)
			}
		}
	}
	if links < 5000 {
		t.Errorf("only %d links found", links)
	}
}

// TestNavigation holds that each page for readers is in the navigation, and that a decision is shown below theirs.
func TestNavigation(t *testing.T) {
	s, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{index: true}
	for _, g := range s.nav {
		for _, e := range g.Pages {
			there[e.page.path] = true
		}
	}
	for _, p := range s.pages {
		dir := path.Dir(p.path)
		if (dir == "docs" || dir == "docs/how-to" || dir == "docs/tutorials" || dir == "docs/reference") && !there[p.path] {
			t.Errorf("%s is not listed in %s", p.path, index)
		}
		if dir == "docs/adr" && s.place(p) < 0 {
			t.Errorf("%s has no place in the navigation", p.path)
		}
	}
}

// TestWords holds that the search's data have every section, with the words of its tables and commands.
func TestWords(t *testing.T) {
	s, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	text, err := s.words()
	if err != nil {
		t.Fatal(err)
	}
	var data struct {
		Pages    [][]any
		Sections [][]any
	}
	if err := json.Unmarshal([]byte(strings.TrimSuffix(strings.TrimPrefix(string(text), "window.words = "), ";\n")), &data); err != nil {
		t.Fatal(err)
	}
	for want, page := range map[string]string{
		"NOT SYNCHRONIZING":          "docs/troubleshooting.html",
		"patronictl switchover":      "docs/tutorials/from-patroni.html",
		"coterie init --group":       "docs/tutorials/three-machines.html",
		"apt-get install postgresql": "docs/tutorials/three-machines.html",
	} {
		found := false
		for _, sec := range data.Sections {
			n, _ := sec[0].(float64)
			said, _ := sec[3].(string)
			found = found || data.Pages[int(n)][0] == page && strings.Contains(said, want)
		}
		if !found {
			t.Errorf("the words of %s lack %q", page, want)
		}
	}
}

// TestFalseLinks holds that a link to a page, a heading or a file that does not exist stops the build.
func TestFalseLinks(t *testing.T) {
	for link, bad := range map[string]bool{
		"docs/README.md": false, "docs/README.md#a-heading": false, "#top": false, "https://example.org/x": false,
		"docs/none.md": true, "docs/README.md#none": true, "#none": true, "none.txt": true, "../etc/passwd": true,
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"README.md": "# Top\n\n[x](" + link + ")\n", index: "# Docs\n\n## A heading\n", "examples/README.md": "# E\n"} {
			if err := writeFile(filepath.Join(dir, name), []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := build(dir, filepath.Join(dir, "dist"))
		if (err != nil) != bad {
			t.Errorf("%s: %v", link, err)
		}
	}
}

// TestKeepsWhatIsNoSite holds that no directory is removed but one that a site is in.
func TestKeepsWhatIsNoSite(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "precious")
	if err := os.WriteFile(precious, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := clear(dir); err == nil {
		t.Error("a directory with files would be removed")
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, mark), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := clear(dir); err != nil {
		t.Error(err)
	}
}

func TestRelative(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"index.html", "docs/a.html", "docs/a.html"},
		{"docs/a.html", "docs/b.html", "b.html"},
		{"docs/how-to/a.html", "docs/b.html", "../b.html"},
		{"docs/how-to/a.html", "index.html", "../../index.html"},
		{"docs/adr/a.html", "docs/how-to/b.html", "../how-to/b.html"},
		{"docs/a.html", "docs/a/b.html", "a/b.html"},
	} {
		if got := relative(c.from, c.to); got != c.want {
			t.Errorf("from %s to %s: %s, not %s", c.from, c.to, got, c.want)
		}
	}
}
