package catalog

import (
	"context"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/dialect"
)

// Error is the error of a query.
type Error = dialect.Error

// kinds are the kinds of expressions, by the types of columns.
var kinds = map[uint32]dialect.Kind{
	typeBool.oid: dialect.Bit, typeInt8.oid: dialect.Int, typeInt4.oid: dialect.Int, typeOID.oid: dialect.Int, typeText.oid: dialect.Text, typeFloat.oid: dialect.Float,
	typeTime.oid: dialect.Time, typeUUID.oid: dialect.UUID,
}

// environment is what queries may refer to.
var environment = dialect.Env{
	Table: func(schema, name string) (string, []dialect.Column, bool) {
		v, ok := viewNamed(schema, name)
		if !ok {
			return "", nil, false
		}
		var out []dialect.Column
		for _, c := range v.columns {
			out = append(out, dialect.Column{Name: c.name, Type: dialect.Type{Kind: kinds[c.typ.oid], OID: c.typ.oid}})
		}
		return v.schema, out, true
	},
	Function: func(name string) bool { return callable()[name] },
}

// viewNamed returns a view. Without a schema it is the first one of that name in the order of schemas.
func viewNamed(schema, name string) (view, bool) {
	for _, s := range schemas {
		if schema != "" && !strings.EqualFold(s, schema) {
			continue
		}
		for _, v := range views {
			if v.schema == s && strings.EqualFold(v.name, name) {
				return v, true
			}
		}
	}
	return view{}, false
}

// translate returns a query as the engine gets it.
func translate(ctx context.Context, text string, variables map[string]dialect.Value) (*dialect.Translation, error) {
	env := environment
	env.Variables = variables
	t, err := dialect.Translate(ctx, text, env)
	if err != nil {
		return nil, err
	}
	if len(t.Params) > maxParams {
		return nil, dialect.Errorf("54000", "at most %d parameters are taken", maxParams)
	}
	if !oneStatement(t.SQL) {
		return nil, dialect.Errorf("42601", "the text is more than one statement")
	}
	return t, nil
}

// endOfQuote returns the index behind the quotation at the beginning of s; 0 if there is none, or it does not end.
func endOfQuote(s string, mark byte) int {
	if s[0] != mark {
		return 0
	}
	for i := 1; i < len(s); i++ {
		if s[i] != mark {
			continue
		}
		if i+1 == len(s) || s[i+1] != mark {
			return i + 1
		}
		i++
	}
	return 0
}

// oneStatement reports whether a text for the engine is one statement by the rules of the engine's own lexer. It does
// not rely on the translation. Quotations and comments that a translation never contains count as more than one.
func oneStatement(sql string) bool {
	for i := 0; i < len(sql); {
		switch c := sql[i]; {
		case c == '\'' || c == '"':
			n := endOfQuote(sql[i:], c)
			if n == 0 {
				return false
			}
			i += n
		case strings.IndexByte(";`[]\x00#@$:\\", c) >= 0, strings.HasPrefix(sql[i:], "--"), strings.HasPrefix(sql[i:], "/*"):
			return false
		default:
			i++
		}
	}
	return true
}
