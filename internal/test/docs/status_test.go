package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// typesOfStatus has the types of the packages of which the document is made: "api.Status" as an example. The package
// of the command, which has the document itself, has no name.
type typesOfStatus struct {
	types  map[string]ast.Expr
	values map[string][]string // the constants of a type
}

// packagesOfStatus are the packages that declare the fields of a status.
var packagesOfStatus = map[string]string{"": "internal/cli/groupcmd", "api": "internal/admin/api", "ag": "internal/ag", "availability": "internal/ag/availability"}

// declarations reads the packagesOfStatus.
func declarations(t *testing.T) typesOfStatus {
	t.Helper()
	d := typesOfStatus{map[string]ast.Expr{}, map[string][]string{}}
	for name, dir := range packagesOfStatus {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch x := n.(type) {
				case *ast.TypeSpec:
					d.types[qualified(name, x.Name.Name)] = x.Type
				case *ast.ValueSpec:
					d.addValue(name, x)
				}
				return true
			})
		}
	}
	return d
}

// addValue adds a constant of a named type, as in RolePrimary Role = "PRIMARY".
func (d typesOfStatus) addValue(pkg string, x *ast.ValueSpec) {
	var name string
	switch of := x.Type.(type) {
	case *ast.Ident:
		name = qualified(pkg, of.Name)
	case *ast.SelectorExpr:
		name = fmt.Sprintf("%s.%s", of.X, of.Sel)
	}
	if name == "" || len(x.Values) != 1 {
		return
	}
	if text, ok := x.Values[0].(*ast.BasicLit); ok && text.Kind == token.STRING {
		d.values[name] = append(d.values[name], strings.Trim(text.Value, `"`))
	}
}

func qualified(pkg, name string) string {
	if pkg == "" || strings.Contains(name, ".") {
		return name
	}
	return pkg + "." + name
}

// kind returns what a reader calls a type that is used in the package, and the struct that it is or has in a list.
func (d typesOfStatus) kind(pkg string, e ast.Expr) (text, nested string) {
	switch x := e.(type) {
	case *ast.StarExpr:
		return d.kind(pkg, x.X)
	case *ast.ArrayType:
		text, nested := d.kind(pkg, x.Elt)
		return "list of " + text, nested
	case *ast.SelectorExpr:
		return d.named(fmt.Sprintf("%s.%s", x.X, x.Sel))
	case *ast.Ident:
		return d.named(qualified(pkg, x.Name))
	}
	return fmt.Sprintf("%T", e), ""
}

// basic are the names of the types of the language, and of the standard library.
var basic = map[string]string{
	"string": "text", "bool": "true or false", "int": "number", "int64": "number", "uint64": "number", "uint32": "number", "float64": "number",
	"time.Time": "time", "time.Duration": "nanoseconds",
}

func (d typesOfStatus) named(name string) (text, nested string) {
	if kind, ok := basic[name[strings.LastIndex(name, ".")+1:]]; ok {
		return kind, ""
	}
	if kind, ok := basic[name]; ok {
		return kind, ""
	}
	switch x := d.types[name].(type) {
	case *ast.StructType:
		return "object", name
	case *ast.Ident:
		text, _ := d.kind(name[:strings.Index(name, ".")], x)
		if values := d.values[name]; len(values) > 0 && len(values) < 10 {
			text += ": `" + strings.Join(values, "`, `") + "`"
		}
		return text, ""
	}
	return "?" + name, ""
}

// absence is how the comment of a field says what it means that the field has no value.
var absence = regexp.MustCompile(`(?:""|nil|zero|0|false|null|absent|Absent): ([^;]+)$`)

// field is a row of the table.
type field struct{ path, kind, meaning, absent string }

// fields lists the fields of a struct, those of the structs in it after them.
func (d typesOfStatus) fields(t *testing.T, name, prefix string) (rows []field) {
	t.Helper()
	pkg := ""
	if i := strings.Index(name, "."); i > 0 {
		pkg = name[:i]
	}
	body, ok := d.types[name].(*ast.StructType)
	if !ok {
		t.Fatalf("%s is no struct", name)
	}
	for _, f := range body.Fields.List {
		if len(f.Names) == 0 { // its fields are fields of this one
			_, nested := d.kind(pkg, f.Type)
			rows = append(rows, d.fields(t, nested, prefix)...)
			continue
		}
		key, options, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
		text := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
		row := field{path: prefix + key}
		var nested string
		row.kind, nested = d.kind(pkg, f.Type)
		if at := absence.FindStringSubmatchIndex(text); at != nil {
			row.absent = strings.TrimSuffix(text[at[2]:at[3]], ".")
			text = strings.TrimRight(text[:at[0]], " ;")
		}
		_, pointer := f.Type.(*ast.StarExpr)
		omitted := strings.Contains(options, "omit")
		if row.absent == "" && omitted {
			switch {
			case row.kind == "true or false":
				row.absent = "it is false"
			case strings.HasPrefix(row.kind, "list"):
				row.absent = "there are none"
			}
		}
		switch {
		case (omitted || pointer) && row.absent == "":
			t.Errorf("%s.%s may be absent, and its comment does not say when: // meaning; \"\": when (or nil:, 0:, false:)", name, f.Names[0])
		case pointer && !omitted:
			row.absent = "null: " + row.absent
		case !omitted && row.absent != "" && row.kind == "number":
			row.absent = "0: " + row.absent
		case !omitted && row.absent != "":
			row.absent = "empty: " + row.absent
		}
		if text == "" {
			t.Errorf("%s.%s has no comment that says what it is", name, f.Names[0])
		}
		for _, verb := range []string{" is ", " are ", " means that "} {
			text = strings.TrimPrefix(text, f.Names[0].Name+verb)
		}
		row.meaning = strings.TrimSuffix(text, ".")
		rows = append(rows, row)
		if nested != "" {
			inner := row.path + "."
			if strings.HasPrefix(row.kind, "list") {
				inner = row.path + "[]."
			}
			rows = append(rows, d.fields(t, nested, inner)...)
		}
	}
	return rows
}

// TestStatusPage holds that docs/reference/status.md has each field of coterie status --json, as the code says it.
func TestStatusPage(t *testing.T) {
	rows := declarations(t).fields(t, "dashboard", "")
	var out strings.Builder
	out.WriteString("| field | type | meaning | absent |\n|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", r.path, r.kind, strings.ReplaceAll(r.meaning, "|", "\\|"), strings.ReplaceAll(r.absent, "|", "\\|"))
		if strings.Contains(r.kind, "?") || strings.Contains(r.kind, "ast.") {
			t.Errorf("%s has a type that this test does not know: %s", r.path, r.kind)
		}
	}
	if !slices.ContainsFunc(rows, func(r field) bool { return r.path == "replicas[].position.lsn" }) || len(rows) < 150 {
		t.Fatalf("only %d fields found: the pattern that finds them is wrong", len(rows))
	}
	generated(t, "docs/reference/status.md", out.String())
}
