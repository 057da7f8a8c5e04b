// Command site makes a static site of the documentation: every page of docs/ and of the root, the navigation of
// docs/README.md, and a search that needs no server. It works from a directory, from any web server, and from a disk.
//
//	site [-root .] [-out dist/site]
//
// A link to a page or a heading that does not exist is an error. A file that a page links to is copied, or shown as a
// page of text. Start reading at build.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	root := flag.String("root", ".", "the root of the repository")
	out := flag.String("out", filepath.Join("dist", "site"), "the directory to write, which is made anew")
	flag.Parse()
	n, err := build(*root, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
	fmt.Printf("%s: %d pages; begin at %s\n", *out, n, filepath.Join(*out, "index.html"))
}

// build writes the site, and returns how many pages it has. It removes what it finds at out, if a site is all there is.
func build(root, out string) (pages int, err error) {
	s, err := load(root)
	if err != nil {
		return 0, err
	}
	if err := s.link(); err != nil {
		return 0, err
	}
	if err := clear(out); err != nil {
		return 0, err
	}
	return len(s.pages), s.write(out)
}

// mark is a file that every site has, and by which one is recognised.
const mark = "site.js"

// clear removes an earlier site, and refuses to remove anything else.
func clear(out string) error {
	entries, err := os.ReadDir(out)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(out, mark)); err != nil {
		return fmt.Errorf("%s has files and is no site: choose another directory with -out", out)
	}
	return os.RemoveAll(out)
}
