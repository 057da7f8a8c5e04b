package node

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// TestCommandsAreAudited holds that a command which may change something is noted for the audit: a method of api.Node
// is one of those below, which only read, or is in audited.go. A statement is noted where it is executed.
func TestCommandsAreAudited(t *testing.T) {
	t.Parallel()
	reads := []string{"Status", "Decisions", "Lineage", "Explain", "Seedings", "BackupActivity", "Link", "Programs", "SQL", "Metrics"}
	var audited, asked []string
	for path, visit := range map[string]func(ast.Node) bool{
		"audited.go": func(n ast.Node) bool {
			if f, is := n.(*ast.FuncDecl); is && f.Recv != nil {
				audited = append(audited, f.Name.Name)
			}
			return true
		},
		"../admin/api/api.go": func(n ast.Node) bool {
			x, is := n.(*ast.TypeSpec)
			if !is || x.Name.Name != "Node" {
				return true
			}
			for _, m := range x.Type.(*ast.InterfaceType).Methods.List {
				asked = append(asked, m.Names[0].Name)
			}
			return false
		},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, visit)
	}
	if len(asked) < len(reads) {
		t.Fatalf("api.Node has %v", asked)
	}
	for _, name := range asked {
		if slices.Contains(reads, name) == slices.Contains(audited, name) {
			t.Errorf("%s only reads: %v; is in the audit: %v", name, slices.Contains(reads, name), slices.Contains(audited, name))
		}
	}
}
