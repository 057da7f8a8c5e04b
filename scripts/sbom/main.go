// Command sbom lists what is linked into the program: every module with its version and licence.
//
//	sbom BINARY    prints a CycloneDX 1.5 document of that binary
//	sbom -page     prints docs/internals/dependencies.md
//
// The modules of a binary are read from the binary, those of the page from the source. Licences are recognised by the
// text of the files in the module cache; one that is not recognised is an error, since somebody has to read it.
package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
)

// program is the package whose modules are listed.
const program = "./cmd/coterie"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: sbom BINARY, or sbom -page")
	}
	all, err := linked(ctx, ".")
	if err != nil {
		return err
	}
	if args[0] == "-page" {
		_, err = io.WriteString(out, page(all))
		return err
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return err
	}
	doc, err := document(info, all)
	if err != nil {
		return err
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(doc)
}

// module is a module that is linked into the program.
type module struct {
	Path, Version, Dir string
	Indirect           bool // no package of ours imports it
	licence            string
}

// linked returns the modules that the program in the source tree at root is made of, in order, without our own.
func linked(ctx context.Context, root string) ([]module, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Module", program)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var said bytes.Buffer
	cmd.Stderr = &said
	b, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, said.String())
	}
	seen := map[string]bool{}
	var all []module
	for d := json.NewDecoder(bytes.NewReader(b)); ; {
		var p struct{ Module *module }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		m := p.Module
		if m == nil || m.Version == "" || seen[m.Path] {
			continue
		}
		seen[m.Path] = true
		if m.licence, err = licenceOf(m.Dir); err != nil {
			return nil, fmt.Errorf("%s %s: %w", m.Path, m.Version, err)
		}
		all = append(all, *m)
	}
	slices.SortFunc(all, func(x, y module) int { return strings.Compare(x.Path, y.Path) })
	return all, nil
}

// texts recognise a licence, by SPDX's names, the more special first. White space is single.
var texts = []struct {
	name string
	is   *regexp.Regexp
}{
	{"Apache-2.0", regexp.MustCompile(`Apache License,? Version 2\.0|www\.apache\.org/licenses/LICENSE-2\.0`)},
	{"MPL-2.0", regexp.MustCompile(`Mozilla Public License`)},
	{"GPL", regexp.MustCompile(`GNU (Lesser |Affero )?General Public License`)},
	{"BSD-3-Clause", regexp.MustCompile(`Redistribution and use in source and binary forms.*(may be used to endorse|be used to endorse or promote)`)},
	{"BSD-2-Clause", regexp.MustCompile(`Redistribution and use in source and binary forms`)},
	{"MIT", regexp.MustCompile(`Permission is hereby granted, free of charge, to any person obtaining a copy`)},
	{"ISC", regexp.MustCompile(`Permission to use, copy, modify, and(/or)? distribute this software for any purpose`)},
}

// allowed are the licences that a linked module may have: see CONTRIBUTING.md.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

var space = regexp.MustCompile(`\s+`)

// licenceOf returns the licence in a module's directory. A licence that is not allowed, or not recognised, is an error.
func licenceOf(dir string) (string, error) {
	for _, name := range []string{"LICENSE", "LICENSE.txt", "LICENSE.md", "COPYING"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		text := space.ReplaceAllString(string(b), " ")
		for _, t := range texts {
			if !t.is.MatchString(text) {
				continue
			}
			if !slices.Contains(allowed, t.name) {
				return "", fmt.Errorf("its licence is %s; allowed are %s", t.name, strings.Join(allowed, ", "))
			}
			return t.name, nil
		}
		return "", fmt.Errorf("the licence in %s is not recognised: read it", name)
	}
	return "", errors.New("it has no licence file")
}
