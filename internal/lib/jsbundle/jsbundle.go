// Package jsbundle makes one script of the ES modules of a page. A browser then makes one request in place of one for
// each module, of which HTTP/1.1 has only six under way at a time.
//
// It is no parser of JavaScript. It knows the forms of import and export that this program's page uses, each at the
// beginning of a line, and refuses every other. Start reading at Bundle.
package jsbundle

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// module is one module, taken apart.
type module struct {
	name    string
	imports []imported
	exports []string
	later   map[string]bool // exports that are functions: a module of the same circle may call them later
	body    string
	open    bool // it is not evaluated yet: what it imports is written before it
}

// imported is one import of a module.
type imported struct {
	from  string
	names []string
}

var (
	importLine = regexp.MustCompile(`^import \{ ([\w, ]+) \} from '\./([\w-]+\.js)';$`)
	exportLine = regexp.MustCompile(`^export \{ ([\w, ]+) \};$`)
	exportDecl = regexp.MustCompile(`^export ((?:async )?function|const|class) (\w+)( = (?:async )?\([^()]*\) =>)?`)
	reserved   = regexp.MustCompile(`^(?:import|export)\b|\bimport(?:\(|\.meta)`)
)

// Bundle returns one module that does what the module entry does with those that it imports. Each stays in a function
// of its own, so that names which it does not export stay its own. Modules are evaluated in the order of the standard.
// In a circle of imports only functions can be used before their module was evaluated, which is an error otherwise.
func Bundle(files map[string]string, entry string) (string, error) {
	b := &bundle{files: files, modules: map[string]*module{}}
	if err := b.add(entry); err != nil {
		return "", err
	}
	return b.out.String(), nil
}

type bundle struct {
	files   map[string]string
	modules map[string]*module
	out     strings.Builder
}

// add writes a module behind those that it imports, once.
func (b *bundle) add(name string) error {
	text, ok := b.files[name]
	if !ok {
		return fmt.Errorf("there is no module %s", name)
	}
	m, err := parse(name, text)
	if err != nil {
		return err
	}
	b.modules[name] = m
	m.open = true
	for _, i := range m.imports {
		if b.modules[i.from] == nil {
			if err := b.add(i.from); err != nil {
				return err
			}
		}
	}
	m.open = false
	fmt.Fprintf(&b.out, "const %s = (() => {\n", variable(name))
	for _, i := range m.imports {
		if err := b.link(m, i); err != nil {
			return err
		}
	}
	fmt.Fprintf(&b.out, "%sreturn { %s };\n})();\n", m.body, strings.Join(m.exports, ", "))
	return nil
}

// link writes how a module reaches what it imports.
func (b *bundle) link(m *module, i imported) error {
	from := b.modules[i.from]
	for _, n := range i.names {
		if !slices.Contains(from.exports, n) {
			return fmt.Errorf("%s imports %s, which %s does not export", m.name, n, i.from)
		}
	}
	if !from.open {
		fmt.Fprintf(&b.out, "const { %s } = %s;\n", strings.Join(i.names, ", "), variable(i.from))
		return nil
	}
	for _, n := range i.names {
		if !from.later[n] {
			return fmt.Errorf("%s and %s import each other, and %s is no function", m.name, i.from, n)
		}
		fmt.Fprintf(&b.out, "const %s = (...a) => %s.%s(...a);\n", n, variable(i.from), n)
	}
	return nil
}

// variable returns the name of the constant with a module's exports. No module of the page uses such names.
func variable(name string) string {
	return "$" + strings.NewReplacer(".", "_", "-", "_").Replace(name)
}

// parse takes a module apart.
func parse(name, text string) (*module, error) {
	m := &module{name: name, later: map[string]bool{}}
	var body strings.Builder
	for at, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		if x := importLine.FindStringSubmatch(line); x != nil {
			m.imports = append(m.imports, imported{x[2], strings.Split(x[1], ", ")})
			continue
		}
		if x := exportLine.FindStringSubmatch(line); x != nil {
			m.exports = append(m.exports, strings.Split(x[1], ", ")...)
			continue
		}
		if x := exportDecl.FindStringSubmatch(line); x != nil {
			m.exports = append(m.exports, x[2])
			m.later[x[2]] = strings.HasSuffix(x[1], "function") || x[3] != ""
			line = strings.TrimPrefix(line, "export ")
		}
		if reserved.MatchString(line) || strings.Contains(line, variable(name)) {
			return nil, fmt.Errorf("line %d of %s has a form of import or export that is not known here", at+1, name)
		}
		body.WriteString(line + "\n")
	}
	m.body = body.String()
	return m, nil
}
