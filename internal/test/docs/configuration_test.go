package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// keys lists the rows of a struct of internal/config: the path of each key, its type, and what its comment says.
func keys(t *testing.T, structs map[string]*ast.StructType, name, prefix string) (rows []string) {
	t.Helper()
	for _, f := range structs[name].Fields.List {
		tag, ok := reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Lookup("yaml")
		if !ok {
			t.Fatalf("%s.%s has no key", name, f.Names[0])
		}
		key, options, _ := strings.Cut(tag, ",")
		text := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
		if text == "" && len(f.Names) == 1 {
			text = "see the row above"
		}
		for _, begin := range []string{f.Names[0].Name + " is ", f.Names[0].Name + " holds "} {
			text = strings.TrimPrefix(text, begin)
		}
		text = strings.ReplaceAll(strings.Replace(text, f.Names[0].Name+" ", "`"+key+"` ", 1), "|", "\\|")
		kind, nested := typeName(f.Type)
		need := ""
		if !strings.Contains(options, "omitempty") && prefix == "" {
			need = "yes"
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |\n", prefix+key, kind, need, text))
		if kind == "list of sections" {
			key += "[]"
		}
		if structs[nested] != nil && nested != "Address" {
			rows = append(rows, keys(t, structs, nested, prefix+key+".")...)
		}
	}
	return rows
}

// typeName returns what a reader calls the type, and the name of the struct that it is or points to.
func typeName(e ast.Expr) (text, nested string) {
	switch x := e.(type) {
	case *ast.Ident:
		switch x.Name {
		case "string":
			return "text", ""
		case "bool":
			return "true, false", ""
		case "int":
			return "number", ""
		case "Address":
			return "`listen`, `advertise`", x.Name
		}
		return "section", x.Name
	case *ast.StarExpr:
		return typeName(x.X)
	case *ast.ArrayType:
		if kind, nested := typeName(x.Elt); kind == "section" {
			return "list of sections", nested
		}
		return "list", ""
	case *ast.MapType:
		return "map", ""
	}
	return "duration, as `10s`", ""
}

// TestConfigurationPage holds that docs/reference/configuration.md has each key of coterie.yaml, as the code says it.
func TestConfigurationPage(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "internal/config/config.go"), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	structs := map[string]*ast.StructType{}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.TypeSpec); ok {
			if body, ok := s.Type.(*ast.StructType); ok {
				structs[s.Name.Name] = body
			}
		}
		return true
	})
	rows := keys(t, structs, "Config", "")
	if len(rows) < 20 {
		t.Fatalf("only %d keys found: the pattern that finds them is wrong", len(rows))
	}
	generated(t, "docs/reference/configuration.md", "| key | type | needed | meaning |\n|---|---|---|---|\n"+strings.Join(rows, "")+"\n")
}
