package node

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/web"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/node/backupruns"
	"github.com/coteriedb/coterie/internal/node/backups"
	"github.com/coteriedb/coterie/internal/node/clientport"
	"github.com/coteriedb/coterie/internal/node/endorsement"
	"github.com/coteriedb/coterie/internal/node/majors"
	"github.com/coteriedb/coterie/internal/node/operations"
	"github.com/coteriedb/coterie/internal/node/pgserver"
	"github.com/coteriedb/coterie/internal/node/pki"
	"github.com/coteriedb/coterie/internal/node/quorum"
	"github.com/coteriedb/coterie/internal/node/seedjobs"
	"github.com/coteriedb/coterie/internal/node/status"
	"github.com/coteriedb/coterie/internal/node/walstream"
	"github.com/coteriedb/coterie/internal/postgres/health"
	"github.com/coteriedb/coterie/internal/postgres/replication"
)

// wired are the parts that this package wires, by the name of their configuration here. leftOut are the functions and
// interfaces that the part has without this package. later is the function of this package that gives it the rest.
var wired = map[string]struct {
	of      reflect.Type
	leftOut []string
	later   string
}{
	"agent.Config":                 {of: reflect.TypeFor[agent.Config]()},
	"backupruns.Config":            {of: reflect.TypeFor[backupruns.Config]()},
	"backups.Config":               {of: reflect.TypeFor[backups.Config](), leftOut: []string{"Open"}},
	"clientport.Config":            {of: reflect.TypeFor[clientport.Config]()},
	"endorsement.Config":           {of: reflect.TypeFor[endorsement.Config]()},
	"endpoint.Config":              {of: reflect.TypeFor[endpoint.Config]()},
	"health.Config":                {of: reflect.TypeFor[health.Config](), leftOut: []string{"Server"}},
	"majors.Config":                {of: reflect.TypeFor[majors.Config](), later: "completeMajors"},
	"operations.Config":            {of: reflect.TypeFor[operations.Config]()},
	"pgserver.ParametersConfig":    {of: reflect.TypeFor[pgserver.ParametersConfig]()},
	"pki.Config":                   {of: reflect.TypeFor[pki.Config]()},
	"quorum.Config":                {of: reflect.TypeFor[quorum.Config]()},
	"replication.DownstreamConfig": {of: reflect.TypeFor[replication.DownstreamConfig]()},
	"replication.UpstreamConfig":   {of: reflect.TypeFor[replication.UpstreamConfig]()},
	"seedjobs.ClientConfig":        {of: reflect.TypeFor[seedjobs.ClientConfig]()},
	"seedjobs.Config":              {of: reflect.TypeFor[seedjobs.Config]()},
	"seedjobs.SourceConfig":        {of: reflect.TypeFor[seedjobs.SourceConfig]()},
	"status.Config":                {of: reflect.TypeFor[status.Config]()},
	"walstream.StreamsConfig":      {of: reflect.TypeFor[walstream.StreamsConfig]()},
	"web.Config":                   {of: reflect.TypeFor[web.Config]()},
}

// TestWiringIsComplete holds that each part of a node is given all functions and interfaces that it asks for. One that
// is missing may show only in a rare case, as that of the certificate of a witness which is renewed.
func TestWiringIsComplete(t *testing.T) {
	t.Parallel()
	functions := declared(t)
	seen := map[string]bool{}
	for _, fn := range functions {
		ast.Inspect(fn, func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			name := typeName(lit.Type)
			w, known := wired[name]
			if !known {
				if strings.HasSuffix(name, "Config") {
					t.Errorf("%s: %s is not among those that are wired", fn.Name, name)
				}
				return true
			}
			seen[name] = true
			has := slices.Concat(keys(lit), fieldsAssigned(fn), w.leftOut)
			for _, other := range functions {
				if other.Name.Name == w.later {
					has = append(has, fieldsAssigned(other)...)
				}
			}
			for _, need := range needs(w.of) {
				if !slices.Contains(has, need) {
					t.Errorf("%s: %s has no %s", fn.Name, name, need)
				}
			}
			return true
		})
	}
	for name := range wired {
		if !seen[name] {
			t.Errorf("%s is wired nowhere", name)
		}
	}
}

// declared are the functions and methods of this package, without those of its tests.
func declared(t *testing.T) (all []*ast.FuncDecl) {
	t.Helper()
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range tree.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				all = append(all, fn)
			}
		}
	}
	return all
}

// needs are the exported fields of a configuration that are functions or interfaces.
func needs(of reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(of) {
		if k := f.Type.Kind(); f.IsExported() && len(f.Index) == 1 && (k == reflect.Func || k == reflect.Interface) {
			names = append(names, f.Name)
		}
	}
	return names
}

func typeName(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name + "." + s.Sel.Name
		}
	}
	return ""
}

func keys(lit *ast.CompositeLit) (names []string) {
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if id, ok := kv.Key.(*ast.Ident); ok {
				names = append(names, id.Name)
			}
		}
	}
	return names
}

// fieldsAssigned are the names of the fields that a function assigns to, of whatever.
func fieldsAssigned(fn *ast.FuncDecl) (names []string) {
	ast.Inspect(fn, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok {
			for _, l := range a.Lhs {
				if s, ok := l.(*ast.SelectorExpr); ok {
					names = append(names, s.Sel.Name)
				}
			}
		}
		return true
	})
	return names
}
