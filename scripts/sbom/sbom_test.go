package main

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

// TestDependenciesPage checks that the page lists what is linked, with licences that are allowed.
func TestDependenciesPage(t *testing.T) {
	if testing.Short() {
		t.Skip("lists all packages")
	}
	all, err := linked(t.Context(), "../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Errorf("only %d modules found", len(all))
	}
	b, err := os.ReadFile("../../docs/internals/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(b) != page(all) {
		t.Error("docs/internals/dependencies.md is not what is linked: make sbom")
	}
}

func TestLicenceOf(t *testing.T) {
	for text, want := range map[string]string{
		"Permission is hereby granted, free of charge, to any person\nobtaining a copy":                                               "MIT",
		"Apache License\n   Version 2.0, January 2004":                                                                                "Apache-2.0",
		"Redistribution and use in source and binary forms, with or without\n modification. Neither the name may\nbe used to endorse": "BSD-3-Clause",
		"Redistribution and use in source and binary forms":                                                                           "BSD-2-Clause",
		"GNU Affero General Public License":                                                                                           "its licence is GPL; allowed are",
		"All rights reserved. Ask our sales department.":                                                                              "is not recognised",
		"": "is not recognised",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "LICENSE"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := licenceOf(dir)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if _, err := licenceOf(t.TempDir()); err == nil {
		t.Error("a module without a licence was taken")
	}
}

func TestDocument(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.2.3", Main: debug.Module{Path: "example.com/p", Version: "v1"}, Deps: []*debug.Module{{Path: "example.com/d", Version: "v2", Sum: "h1:x"}}}
	doc, err := document(info, []module{{Path: "example.com/d", Version: "v2", licence: "MIT"}})
	if err != nil || len(doc.Components) != 2 || doc.Components[1].PURL != "pkg:golang/example.com/d@v2" || doc.Components[1].Licences[0].Licence.ID != "MIT" {
		t.Errorf("%+v, %v", doc, err)
	}
	if _, err := document(info, []module{{Path: "example.com/d", Version: "v3"}}); err == nil {
		t.Error("a binary of another source was described")
	}
}
