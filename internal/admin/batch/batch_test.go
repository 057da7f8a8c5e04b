package batch

import (
	"errors"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// TestSplit holds where the parts of a script begin and end.
func TestSplit(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"SELECT 1; SELECT 2", "SELECT 1|SELECT 2"},
		{"SELECT 1 SELECT 2", "SELECT 1|SELECT 2"},
		{"SELECT 1\nSELECT 2\nGO", "SELECT 1|SELECT 2"},
		{"SELECT 1\nGO 3", "SELECT 1|SELECT 1|SELECT 1"},
		{"SELECT 1\ngo\nSELECT 2;\nGO\n", "SELECT 1|SELECT 2"},
		{"SELECT 1 UNION SELECT 2 UNION ALL SELECT 3 EXCEPT SELECT 4", "SELECT 1 UNION SELECT 2 UNION ALL SELECT 3 EXCEPT SELECT 4"},
		{"WITH a AS (SELECT 1 AS x) SELECT x FROM a SELECT 2", "WITH a AS (SELECT 1 AS x) SELECT x FROM a|SELECT 2"},
		{"SELECT (SELECT 1), EXISTS (SELECT 2)", "SELECT (SELECT 1), EXISTS (SELECT 2)"},
		{"SELECT CASE WHEN 1 = 1 THEN 'a' ELSE 'b' END AS x SELECT 2", "SELECT CASE WHEN 1 = 1 THEN 'a' ELSE 'b' END AS x|SELECT 2"},
		{"SELECT 'a;b', \"c;d\", [e;f] -- ;\n/* ; */; SELECT 2", "SELECT 'a;b', \"c;d\", [e;f]|SELECT 2"},
		{"USE master\nSELECT 1", "USE master|SELECT 1"},
		{"SET NOCOUNT ON\nSELECT 1", "SET NOCOUNT ON|SELECT 1"},
		{"ALTER AVAILABILITY GROUP [g]\nSET (DB_FAILOVER = ON)\nALTER AVAILABILITY GROUP [g]\nGRANT CREATE ANY DATABASE", "ALTER AVAILABILITY GROUP [g]\nSET (DB_FAILOVER = ON)|ALTER AVAILABILITY GROUP [g]\nGRANT CREATE ANY DATABASE"},
		{"BEGIN; SELECT 1; COMMIT", "BEGIN|SELECT 1|COMMIT"},
		{"BEGIN TRAN; SELECT 1; COMMIT", "BEGIN TRAN|SELECT 1|COMMIT"},
		{"SELECT name AS print, x.exec FROM x", "SELECT name AS print, x.exec FROM x"},
		{"EXEC sp_who2\nSELECT 1", "EXEC sp_who2|SELECT 1"},
		{"", ""},
		{";;", ""},
		{"PREPARE x AS SELECT 1", "PREPARE x AS SELECT 1"},
		{"CREATE LOGIN x WITH PASSWORD = 'y'\nSELECT 1", "CREATE LOGIN x WITH PASSWORD = 'y'|SELECT 1"},
		{"CREATE VIEW x AS SELECT 1", "CREATE VIEW x AS SELECT 1"},
		{"DECLARE @x int = 1\nSELECT @x\nGO\nSELECT 2", "DECLARE @x int = 1\nSELECT @x|SELECT 2"},
		{"IF 1 = 1 SELECT 1 ELSE SELECT 2; SELECT 3", "IF 1 = 1 SELECT 1 ELSE SELECT 2; SELECT 3"},
		{"SELECT name FROM x; SELECT @@ROWCOUNT\nGO\nSELECT 1; SELECT 2", "SELECT name FROM x; SELECT @@ROWCOUNT|SELECT 1|SELECT 2"},
		{"SELECT 1 AS go\nFROM x", "SELECT 1 AS go\nFROM x"},
	} {
		parts, err := Split(tt.text)
		var got []string
		for _, p := range parts {
			got = append(got, p.Text)
		}
		if err != nil || strings.Join(got, "|") != tt.want {
			t.Errorf("%q\n got %q, %v\nwant %q", tt.text, strings.Join(got, "|"), err, tt.want)
		}
	}
}

// shown returns statements in a short form.
func shown(list []Statement) string {
	var out []string
	for _, s := range list {
		text := map[Kind]string{Plain: "", Declare: "declare ", Assign: "set ", If: "if ", Print: "print ", Raise: "raise ", Return: "return", While: "while ", Break: "break", Continue: "continue", Try: "try", Throw: "throw "}[s.Kind]
		for _, v := range s.Variables {
			text += "@" + v.Name + " <" + v.Type + "> " + v.Value + ", "
		}
		if s.Prefix != "" {
			text += "(" + s.Prefix + ") "
		}
		if text += s.Text; len(s.Values) > 0 {
			text += " (" + strings.Join(s.Values, " | ") + ")"
		}
		if s.Number != "" {
			text += " (" + s.Number + " | " + s.State + ")"
		}
		if s.Kind == If || s.Kind == While || s.Kind == Try {
			text += " {" + shown(s.Then) + "} {" + shown(s.Else) + "}"
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// TestParse holds the statements of batches with variables and control flow.
func TestParse(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"DECLARE @a int, @b AS varchar(10) = 'x,y', @c decimal(10, 2)", "declare @a <int> , @b <varchar(10)> 'x,y', @c <decimal(10, 2)> , "},
		{"SET @a = 1 + (2) SELECT @a", "set @a <> 1 + (2), ; SELECT @a"},
		{"ALTER AVAILABILITY GROUP g JOIN\nSET @a = 2", "ALTER AVAILABILITY GROUP g JOIN; set @a <> 2, "},
		{"SET @a += 2", "set @a <> @a + (2), "},
		{"SELECT @a = count(*), @b = max(x) FROM t WHERE y = 1", "set @a <> count(*), @b <> max(x), FROM t WHERE y = 1"},
		{"SELECT TOP (1) @a = x FROM t ORDER BY x SELECT @a", "set @a <> x, (TOP (1)) FROM t ORDER BY x; SELECT @a"},
		{"IF (SELECT 1) = 1 PRINT 'a' ELSE PRINT 'b'", "if (SELECT 1) = 1 {print 'a'} {print 'b'}"},
		{"IF EXISTS (SELECT 1) BEGIN PRINT 'a'; SELECT 1 END ELSE BEGIN SELECT 2\nSELECT 3 END SELECT 4", "if EXISTS (SELECT 1) {print 'a'; SELECT 1} {SELECT 2; SELECT 3}; SELECT 4"},
		{"IF 1 = 0 PRINT 'a'\nELSE IF 1 = 1 PRINT 'b'\nELSE PRINT 'c'", "if 1 = 0 {print 'a'} {if 1 = 1 {print 'b'} {print 'c'}}"},
		{"IF @x = CASE WHEN 1 = 1 THEN 1 ELSE 2 END SELECT CASE WHEN 1 = 1 THEN 1 ELSE 2 END ELSE SELECT 0", "if @x = CASE WHEN 1 = 1 THEN 1 ELSE 2 END {SELECT CASE WHEN 1 = 1 THEN 1 ELSE 2 END} {SELECT 0}"},
		{"PRINT 'a' + CAST(1 AS varchar(5))\nRETURN\nSELECT 1", "print 'a' + CAST(1 AS varchar(5)); return; SELECT 1"},
		{"RAISERROR('bad', 16, 1) WITH NOWAIT; RAISERROR (N'x', 0, 1)", "raise 'bad'; raise N'x'"},
		{"RAISERROR('x %s %d', 16, 1, @a, 2) WITH LOG, NOWAIT SELECT 1", "raise 'x %s %d' (@a | 2); SELECT 1"},
		{"IF 1 = 1 ALTER AVAILABILITY GROUP g SUSPEND ELSE PRINT 'no'", "if 1 = 1 {ALTER AVAILABILITY GROUP g SUSPEND} {print 'no'}"},
		{"IF 1 = 1 BEGIN ALTER AVAILABILITY GROUP g SET (X = 1); END", "if 1 = 1 {ALTER AVAILABILITY GROUP g SET (X = 1)} {}"},
		{"WHILE 1 = 1 BEGIN BREAK; CONTINUE END SELECT 1", "while 1 = 1 {break; continue} {}; SELECT 1"},
		{"BEGIN TRY BEGIN TRAN SELECT 1 COMMIT END TRY BEGIN CATCH IF @@TRANCOUNT > 0 ROLLBACK; THROW END CATCH; SELECT 2", "try {BEGIN TRAN; SELECT 1; COMMIT} {if @@TRANCOUNT > 0 {ROLLBACK} {}; throw }; SELECT 2"},
		{"THROW 50001, N'x', 3", "throw N'x' (50001 | 3)"},
		{"BEGIN TRAN EXEC sp_who COMMIT", "BEGIN TRAN; EXEC sp_who COMMIT"},
		{"USE master PRINT 'x' SET NOCOUNT ON SET @a = 1", "USE master; print 'x'; SET NOCOUNT ON; set @a <> 1, "},
		{"IF 1 = 1 PRINT 'a'; ELSE PRINT 'b'", "if 1 = 1 {print 'a'} {print 'b'}"},
	} {
		list, err := Parse(tt.text)
		if got := shown(list); err != nil || got != tt.want {
			t.Errorf("%s\n got %s, %v\nwant %s", tt.text, got, err, tt.want)
		}
	}
	for text, want := range map[string]string{
		"WAITFOR DELAY '00:00:01'":   "WAITFOR is not supported in the console",
		"BEGIN TRY SELECT 1 END TRY": "incorrect syntax near the end: expected BEGIN CATCH",
		"WHILE 1 = 1":                "incorrect syntax near the end: expected a statement",

		"BEGIN TRY SELECT 1 END TRY BEGIN CATCH SELECT 2 END": "incorrect syntax near the end: expected END CATCH",
		"DECLARE @t TABLE (x int)":                            "DECLARE ... TABLE is not supported in the console",
		"DECLARE @x":                                          "incorrect syntax near the end: expected a type",
		"IF 1 = 1":                                            "incorrect syntax near the end: expected a statement",
		"IF 1 = 1 BEGIN SELECT 1":                             "incorrect syntax near the end: expected END",
		"SELECT @a = 1, x FROM t":                             "a SELECT that assigns to variables and returns columns is not supported in the console",

		"RAISERROR('x', 16, 1" + strings.Repeat(", 5", 21) + ")": "RAISERROR with more than 20 values is not supported",

		"PRINT 'a'; GO\nPRINT 'b'":             "incorrect syntax near 'GO': it is not alone on its line",
		"PRINT":                                "incorrect syntax near the end: expected an expression",
		"SELECT 'x":                            "unclosed quotation mark, expected '",
		strings.Repeat("IF 1 = 1 ", 40) + "GO": "too many statements are nested in one another",
	} {
		_, err := Parse(text)
		var known *ddl.Error
		if !errors.As(err, &known) || known.Message != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// FuzzSplit divides arbitrary texts. Every part is a piece of the text, and parses as one again.
func FuzzSplit(f *testing.F) {
	for _, s := range []string{
		"DECLARE @a int = 1, @b varchar(5) IF @a > 1 BEGIN PRINT 'x' END ELSE SELECT @b = name FROM t; GO 3\nSELECT 1 SELECT 2",
		"WITH a AS (SELECT 1) SELECT CASE WHEN 1 THEN 2 END UNION SELECT 3\nEXEC x\nRAISERROR('x', 1, 1) RETURN",
		"ALTER AVAILABILITY GROUP [g] SET (X = 1)\nGO\nBEGIN; COMMIT; BEGIN TRY",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parts, err := Split(text)
		if err != nil {
			var known *ddl.Error
			if !errors.As(err, &known) {
				t.Fatal(err)
			}
			return
		}
		for _, p := range parts {
			if !strings.Contains(text, p.Text) || p.Text == "" {
				t.Fatalf("%q is no part of %q", p.Text, text)
			}
			if _, err := Parse(p.Text); err != nil {
				t.Fatalf("%q of %q: %v", p.Text, text, err)
			}
		}
	})
}
