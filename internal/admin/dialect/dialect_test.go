package dialect

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

// world has one table, t(name, n, at, ok), in the schema sys.
var world = Env{
	Table: func(schema, name string) (string, []Column, bool) {
		if schema != "" && schema != "sys" || !strings.EqualFold(name, "t") {
			return "", nil, false
		}
		return "sys", []Column{{"name", Type{Kind: Text, OID: 25}}, {"n", Type{Kind: Int, OID: 20}}, {"at", Type{Kind: Time, OID: 1184}}, {"ok", Type{Kind: Bit, OID: 16}}}, true
	},
	Function: func(name string) bool { return name == "version" },
}

// TestHintsAreForEveryClient holds what a refusal proposes: of a name of SQL Server what there is in its place, and
// nothing that a client other than psql does not have.
func TestHintsAreForEveryClient(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"SELECT name FROM sys.server_principals":       "pg_roles",
		"SELECT * FROM [master].[dbo].[syslogins]":     "pg_roles",
		"SELECT size FROM sys.master_files":            "pg_database_size()",
		"SELECT status FROM sys.dm_exec_requests AS r": "coterie.sessions",
		"SELECT * FROM coterie.messages":               "information_schema.tables",
		"SELECT frobnicate(1)":                         "docs/views.md",
	} {
		_, err := Translate(t.Context(), text, world)
		var known *Error
		if !errors.As(err, &known) || !strings.Contains(known.Hint, want) || strings.Contains(known.Hint, `\`) {
			t.Errorf("%s: %+v, want %s", text, err, want)
		}
	}
}

// TestRefused holds that what is not supported is refused, by the name of the construct.
func TestRefused(t *testing.T) {
	for text, want := range map[string]string{
		"SELECT * INTO #x FROM t":                             "INTO",
		"SELECT * FROM #x":                                    "a temporary table (#x)",
		"SELECT * FROM @x":                                    "a table variable (@x)",
		"SELECT * FROM srv.master.sys.t":                      "a name of four parts",
		"SELECT * FROM shop.sys.t":                            "the database shop",
		"SELECT TOP 5 PERCENT name FROM t":                    "TOP ... PERCENT",
		"SELECT TOP 5 WITH TIES * FROM t ORDER BY n":          "* with WITH TIES",
		"SELECT DISTINCT ON (n) n FROM t":                     "DISTINCT ON",
		"SELECT name FROM t FOR JSON AUTO":                    "FOR JSON",
		"SELECT name FROM t FOR XML RAW":                      "FOR XML",
		"SELECT * FROM t PIVOT (max(n) FOR name IN (a)) AS p": "PIVOT",
		"SELECT n FROM t GROUP BY ROLLUP (n)":                 "ROLLUP",
		"SELECT n FROM t GROUP BY n WITH CUBE":                "CUBE",
		"SELECT n FROM t GROUP BY GROUPING SETS ((n))":        "GROUPING",
		"SELECT * FROM t TABLESAMPLE (5 ROWS)":                "TABLESAMPLE",
		"SELECT * FROM t CROSS APPLY sys.fn(n) AS f":          "the table function FN",
		"SELECT * FROM t CROSS APPLY t AS f":                  "CROSS APPLY on a function or a table",
		"SELECT * FROM generate_series(1, 3)":                 "the table function GENERATE_SERIES",
		"SELECT * FROM OPENQUERY(srv, 'x')":                   "the table function OPENQUERY",
		"SELECT at AT TIME ZONE 'CET' FROM t":                 "AT TIME ZONE",
		"SELECT at - interval '1 day' FROM t":                 "INTERVAL",
		"SELECT name SIMILAR TO 'a' FROM t":                   "SIMILAR",
		"SELECT CAST(n AS money) FROM t":                      "the type money",
		"SELECT CAST(name AS varbinary(5)) FROM t":            "the type varbinary",
		"SELECT name COLLATE Klingon FROM t":                  "the collation klingon",
		"SELECT LOG(n) FROM t":                                "LOG",
		"SELECT 0x1F":                                         "a binary constant",
		"SELECT {fn NOW()}":                                   "an escape of ODBC",
		"SELECT PARSE('12' AS int)":                           "PARSE",
		"SELECT IS_SRVROLEMEMBER('sysadmin')":                 "IS_SRVROLEMEMBER",
		"SELECT STDEV(n) FROM t":                              "STDEV",
		"SELECT n > ANY (SELECT n FROM t) FROM t":             "> ANY",
		"SELECT name @> 'x' FROM t":                           "the operator @>",
		"SELECT ARRAY[1,2]":                                   "an array",
		"SELECT n FROM t EXCEPT ALL SELECT n FROM t":          "EXCEPT ALL",
		"SELECT NEXT VALUE FOR s":                             "NEXT VALUE FOR",
		"SELECT x.value('.', 'int') FROM t":                   "the method x.value",
		"SELECT LAG(n) IGNORE NULLS OVER (ORDER BY n) FROM t": "IGNORE NULLS",
		"SELECT at + name FROM t":                             "+ with a time",
		"SELECT * FROM t ORDER BY n USING <":                  "ORDER BY ... USING",
		"SELECT STRING_AGG(DISTINCT name, ',') FROM t":        "STRING_AGG(DISTINCT ...)",
		"WITH XMLNAMESPACES ('u' AS x) SELECT 1":              "XMLNAMESPACES",
		"SELECT a = 1, @x = name FROM t":                      "SELECT @variable",
		"SELECT FORMAT(name, 'N') FROM t":                     "FORMAT of a text",
		"SELECT MAX(at - at) FROM t":                          "the difference of two times",
		"SELECT n FROM t WHERE CONTAINS(name, 'x')":           "CONTAINS",
		"SELECT OVERLAY(name PLACING 'x' FROM 1) FROM t":      "OVERLAY",
	} {
		_, err := Translate(t.Context(), text, world)
		var known *Error
		if !errors.As(err, &known) || !strings.Contains(known.Message, want) || !strings.Contains(known.Message, "not supported") && !strings.Contains(known.Message, "no such function") {
			t.Errorf("%s: %v, want a refusal of %s", text, err, want)
		}
	}
}

// TestSyntaxErrors holds that a text which the grammar does not have is an error, and names the place.
func TestSyntaxErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "a query begins with SELECT, WITH, VALUES or TABLE, not with the end of the query",
		"DELETE FROM t":              `a query begins with SELECT, WITH, VALUES or TABLE, not with "DELETE"`,
		"SELECT":                     "syntax error at or near the end of the query",
		"SELECT 1; SELECT 2":         `syntax error at or near "SELECT"`,
		"SELECT (1":                  "syntax error at or near the end of the query",
		"SELECT 1 FROM t WHERE":      "syntax error at or near the end of the query",
		"SELECT 1 `x`":               "syntax error at or near \"`\"",
		"SELECT 1a":                  "trailing junk after the number \"1\"",
		"SELECT nme FROM t":          "no such column: nme",
		"SELECT x.name FROM t":       `missing FROM-clause entry for table "x"`,
		"SELECT t.nme FROM t":        "no such column: t.nme",
		"SELECT * FROM sys.nothing":  "no such table: sys.nothing",
		"SELECT 1 FROM t, t":         `table name "t" specified more than once`,
		"SELECT @x":                  `must declare the scalar variable "@x"`,
		"SELECT UPPER()":             "wrong number of arguments to function UPPER()",
		"SELECT CAST(1 AS nosuch)":   `type "nosuch" does not exist`,
		"SELECT 1 LIMIT 1.5":         `a number of rows is a whole number, not "1.5"`,
		"VALUES (1), (1, 2)":         "VALUES lists must all be the same length",
		"SELECT 1 UNION SELECT 1, 2": "each UNION query must have the same number of columns",
		"SELECT coterie_pump()":      "no such function: COTERIE_PUMP",
		"SELECT co_number('1')":      "no such function: CO_NUMBER",
	} {
		_, err := Translate(t.Context(), text, world)
		var known *Error
		if !errors.As(err, &known) || known.Message != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// TestNotices holds that a clause without an effect is named.
func TestNotices(t *testing.T) {
	for text, want := range map[string][]string{
		"SELECT name FROM t WITH (NOLOCK)":                     nil,
		"SELECT name FROM t (NOLOCK) WHERE n = 1":              nil,
		"SELECT x.name FROM t AS x WITH (NOLOCK, INDEX(1))":    nil,
		"SELECT name FROM t WITH (UPDLOCK)":                    {"the table hint UPDLOCK has no effect: the views are read without locks"},
		"SELECT name FROM t OPTION (RECOMPILE, MAXDOP 1)":      {"OPTION (...) has no effect: the views have no query plans to choose from"},
		"SELECT a.n FROM t a INNER HASH JOIN t b ON a.n = b.n": {"the hint HASH of a join has no effect"},
	} {
		tr, err := Translate(t.Context(), text, world)
		if err != nil || !slices.Equal(tr.Notices, want) {
			t.Errorf("%s: %v, %v, want %v", text, tr, err, want)
		}
	}
}

// longest returns a text of 256 KiB that repeats a part.
func longest(begin, part string) string {
	return begin + strings.Repeat(part, (maxText-len(begin))/len(part))
}

// TestTranslationIsBounded holds that the work of a translation, counted in bytes that are written, is in proportion to
// the limits of the text and not to their squares, and that nesting is refused before it costs anything.
func TestTranslationIsBounded(t *testing.T) {
	texts := map[string]string{
		"casts in a row":    "SELECT 1" + strings.Repeat("::int", 8000),
		"dropped casts":     "SELECT (" + strings.Repeat("1,", 1900) + "1)" + strings.Repeat("::bool", 90),
		"nested CAST":       "SELECT " + strings.Repeat("CAST(", 8000) + "1" + strings.Repeat(" AS int)", 8000),
		"CAST in CAST":      "SELECT " + strings.Repeat("CAST(", 49) + strings.Repeat("1+", 1800) + "1" + strings.Repeat(" AS int)", 49),
		"casts of brackets": "SELECT " + strings.Repeat("(", 49) + strings.Repeat("1+", 1700) + "1" + strings.Repeat(")::int", 49),
		"many casts":        "SELECT " + strings.Repeat("(1)::int,", 600) + "1",
		"many ANY":          "SELECT " + strings.Repeat("1 = ANY (ARRAY[1]),", 300) + "1",
		"open ANY":          "SELECT " + strings.Repeat("1 = ANY (", 900),
		"open TOP":          "SELECT " + strings.Repeat("SELECT TOP (", 900),
		"dots":              "SELECT " + strings.Repeat("a.", 1900) + "a" + strings.Repeat("::int", 60),
		"CASE of CASE":      "SELECT " + strings.Repeat("CASE ", 40) + "1" + strings.Repeat(" WHEN 1 THEN 2 WHEN 3 THEN 4 END", 40),
		"BETWEEN":           "SELECT " + strings.Repeat("(", 45) + "1" + strings.Repeat(" BETWEEN 1 AND 2)", 45),
		"NOT":               "SELECT " + strings.Repeat("NOT ", 3900) + "1",
		"minus":             "SELECT " + strings.Repeat("- ", 3900) + "1",
		"joins":             "SELECT 1 FROM t" + strings.Repeat(" JOIN t", 1900),
		"unions":            "SELECT 1" + strings.Repeat(" UNION SELECT 1", 1200),
	}
	for _, part := range []string{
		"a ", "\"a\" ", "[a] ", "[", "[a", "'a' ", "E'\\'' ", "N'a' ", "1 ", "1E'a' ", "$1 ", "+", "::", "(", ")", "[1]", ".", "-- a\n", "/* a */", "/*", " ", "é ", ",", "''",
		"CAST(", " AS int)", "::int", "1::int,", "= ANY (", "ARRAY[", "OPERATOR(", "COLLATE a.", "extract(a FROM ", "TOP (", "FETCH FIRST 1 ROW ", "LIMIT ALL ",
		"CASE ", "CASE WHEN 1 THEN ", "NOT ", "@a ", "1 BETWEEN ", "(SELECT ", "1 LIKE ", "IIF(", "CONVERT(int,",
	} {
		texts["256 KiB of "+part] = longest("SELECT ", part)
	}
	for name, text := range texts {
		q, _, err := parse(text)
		var known *Error
		if err != nil && (!errors.As(err, &known) || known.State == "") {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		w := &writer{env: world, params: map[int]uint32{}}
		func() {
			defer func() { _ = recover() }()
			w.query(q, nil)
		}()
		if w.written > maxWritten+1<<20 {
			t.Errorf("%s: %d bytes were written", name, w.written)
		}
	}
	for name, want := range map[string]string{"casts in a row": "54001", "nested CAST": "54001", "dropped casts": "54001", "many casts": "", "many ANY": "", "casts of brackets": ""} {
		_, err := Translate(t.Context(), texts[name], world)
		var known *Error
		if errors.As(err, &known); want == "" && err != nil || want != "" && (known == nil || known.State != want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Translate(ended, "SELECT 1", world); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its statement: %v", err)
	}
}

// FuzzTranslate translates arbitrary texts. An error is correct; a panic is not, nor an unquoted character of the text.
func FuzzTranslate(f *testing.F) {
	for _, s := range []string{
		"SELECT TOP (2) WITH TIES [name], x = n + 1 FROM sys.t AS a WITH (NOLOCK) CROSS APPLY (SELECT a.n AS m) AS b WHERE name LIKE '[a-c]%' ORDER BY n DESC OPTION (RECOMPILE)",
		"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 3) SELECT count(*) FILTER (WHERE x > 1), STRING_AGG(x, ',') WITHIN GROUP (ORDER BY x) FROM c",
		"SELECT STUFF((SELECT ', ' + name FROM t ORDER BY name FOR XML PATH('')), 1, 2, ''), CONVERT(varchar(19), at, 120), CAST(n / 3.0 AS decimal(9,2))::text FROM t",
		"SELECT CASE n WHEN 1 THEN 'a' ELSE NULL END, ISNULL(name, ''), n BETWEEN 1 AND $1, name COLLATE x_CI_AS, extract(epoch from (at - at)) FROM t a LEFT JOIN t b USING (n)",
		`SELECT E'\'', "a""b", [a]]b], N'é', 1e5, .5, @@SERVERNAME, @x, $1 = ANY ('{1,2}'), t.* FROM t OFFSET 1 ROWS FETCH NEXT 2 ROWS ONLY`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		tr, err := Translate(t.Context(), text, world)
		if err != nil {
			var known *Error
			if !errors.As(err, &known) || known.State == "" {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if outside := unquoted(tr.SQL); strings.ContainsAny(outside, ";`[]\x00#@$:\\{}") || strings.Contains(outside, "--") || strings.Contains(outside, "/*") {
			t.Fatalf("%q: the engine would get %q", text, tr.SQL)
		}
	})
}

// unquoted returns a text without its quotations.
func unquoted(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\'' && s[i] != '"' {
			b.WriteByte(s[i])
			continue
		}
		for mark := s[i]; ; {
			i++
			if i >= len(s) {
				return b.String()
			}
			if s[i] == mark {
				if i+1 < len(s) && s[i+1] == mark {
					i++
					continue
				}
				break
			}
		}
	}
	return b.String()
}
