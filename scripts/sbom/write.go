package main

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
)

// page returns the page that lists the modules.
func page(all []module) string {
	direct, counts := 0, map[string]int{}
	for _, m := range all {
		counts[m.licence]++
		if !m.Indirect {
			direct++
		}
	}
	var kinds []string
	for _, l := range allowed {
		if counts[l] > 0 {
			kinds = append(kinds, fmt.Sprintf("%s %d", l, counts[l]))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, `# Dependencies

Every module that is linked into `+"`coterie`"+`: %d, of which our packages import %d; the others come with them, most with etcd. Licences: %s. [What a new one needs](../../CONTRIBUTING.md#dependencies).

`+"`make sbom`"+` writes this page from the source, and bin/coterie.cdx.json, a list in the CycloneDX format, from the built program. A test compares this page with the source. `+"`make vuln`"+` looks for known vulnerabilities in what is linked.

| module | version | licence | imported by |
|---|---|---|---|
`, len(all), direct, strings.Join(kinds, ", "))
	for _, m := range all {
		by := "our packages"
		if m.Indirect {
			by = "dependencies"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", m.Path, m.Version, m.licence, by)
	}
	return b.String()
}

// The part of CycloneDX 1.5 that is written.
type (
	bill struct {
		Format     string      `json:"bomFormat"`
		Spec       string      `json:"specVersion"`
		Version    int         `json:"version"`
		Metadata   metadata    `json:"metadata"`
		Components []component `json:"components"`
	}
	metadata struct {
		Component component `json:"component"`
	}
	component struct {
		Type       string     `json:"type"`
		Name       string     `json:"name"`
		Version    string     `json:"version"`
		PURL       string     `json:"purl,omitempty"`
		Licences   []licences `json:"licenses,omitempty"`
		Properties []property `json:"properties,omitempty"`
	}
	licences struct {
		Licence licenceID `json:"license"`
	}
	licenceID struct {
		ID string `json:"id"`
	}
	property struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
)

// document returns the list of the modules that the binary says it is made of. all tells their licences: a module of
// the binary that is not in it is an error, for the binary is then not of this source.
func document(info *debug.BuildInfo, all []module) (bill, error) {
	doc := bill{
		Format: "CycloneDX", Spec: "1.5", Version: 1,
		Metadata: metadata{component{Type: "application", Name: info.Main.Path, Version: info.Main.Version}},
	}
	standard := strings.TrimPrefix(info.GoVersion, "go")
	doc.Components = append(doc.Components, component{
		Type: "library", Name: "stdlib", Version: standard, PURL: "pkg:golang/stdlib@" + standard, Licences: []licences{{licenceID{"BSD-3-Clause"}}},
	})
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		i := slices.IndexFunc(all, func(m module) bool { return m.Path == d.Path && m.Version == d.Version })
		if i < 0 {
			return bill{}, fmt.Errorf("%s %s is in the binary and not in the source: make build, then again", d.Path, d.Version)
		}
		doc.Components = append(doc.Components, component{
			Type: "library", Name: d.Path, Version: d.Version, PURL: "pkg:golang/" + d.Path + "@" + d.Version,
			Licences: []licences{{licenceID{all[i].licence}}}, Properties: []property{{"go:sum", d.Sum}},
		})
	}
	return doc, nil
}
