package console

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/admin/batch"
	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// batches are scripts with what a session answers: notices, rows and tags, or the SQLSTATE and the text of an error.
var batches = []struct{ text, want string }{
	{"DECLARE @db sysname = 'postgres'; SELECT name FROM sys.databases WHERE name = @db", "DECLARE|[postgres] SELECT"},
	{"DECLARE @n int\nSELECT @n = COUNT(*) FROM sys.availability_replicas\nPRINT 'replicas: ' + CAST(@n AS varchar(10))", "DECLARE|SET|'replicas: 2' PRINT"},
	{"IF (SELECT role_desc FROM sys.dm_hadr_availability_replica_states WHERE is_local = 1) = 'PRIMARY' BEGIN PRINT 'primary' END ELSE BEGIN PRINT 'secondary' END", "'primary' PRINT"},
	{"IF sys.fn_hadr_is_primary_replica('postgres') <> 1\nBEGIN\n  RAISERROR('not the primary', 16, 1)\n  RETURN\nEND\nSELECT 1 AS go_on", "IF|[1] SELECT"},
	{"IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = 'none') RAISERROR('no such database', 16, 1); SELECT 1", "P0001 no such database"},
	{"IF EXISTS (SELECT 1 FROM sys.databases WHERE name = 'none') PRINT 'there' ELSE PRINT 'absent'", "'absent' PRINT"},
	{"DECLARE @a int = 1, @b decimal(10,2) = 2.5, @c varchar(3) = 'abcdef', @d bit = 1, @e datetime = '2026-01-02'\nSELECT @a + 1, @b, @c, @d, YEAR(@e)", "DECLARE|[2 2.50 abc true 2026] SELECT"},
	{"DECLARE @s nvarchar(max) = ''\nSET @s += 'it''s'\nSELECT @s + ';' AS x", "DECLARE|SET|[it's;] SELECT"},
	{"DECLARE @x int = 5 SELECT @x = 7 WHERE 1 = 0 SELECT @x", "DECLARE|SET|[5] SELECT"},
	{"DECLARE @x int; IF @x IS NULL PRINT 'null' ELSE PRINT 'set'", "DECLARE|'null' PRINT"},
	{"PRINT 1 + 1 PRINT NULL RETURN PRINT 'never'", "'2' PRINT|'' PRINT"},
	{"SELECT 1 SELECT 2", "[1] SELECT|[2] SELECT"},
	{"DECLARE @x int = 'a'", "22P02 conversion failed when converting the value \"a\" to an integer"},
	{"SELECT @y", "42704 must declare the scalar variable \"@y\""},
	{"SET @y = 1", "42704 must declare the scalar variable \"@y\""},
	{"DECLARE @x int DECLARE @x int", "42710 the variable name @x has already been declared"},
	{"DECLARE @x money", "0A000 the type money is not supported in the console"},
	{"DECLARE @x varchar(50) = '''; DROP TABLE x --' SELECT @x", "DECLARE|['; DROP TABLE x --] SELECT"},
	{"DECLARE @x int = 1) , (2", "0A000 2 is not a statement of the console"},
	{"EXEC sp_server_diagnostics", "0A000 EXEC sp_server_diagnostics is not supported in the console"},
	{"EXEC master.dbo.xp_readerrorlog 0, 1, N'x'", "0A000 EXEC xp_readerrorlog is not supported in the console"},
	{"EXECUTE @rc = sp_who2", "0A000 EXEC sp_who2 is not supported in the console"},
	{"EXEC ('SELECT 1')", "0A000 EXEC of a text is not supported in the console"},
	{"SET NOCOUNT ON\nDECLARE @who sysname\nSELECT @who = primary_replica FROM sys.dm_hadr_availability_group_states\nIF @who = @@SERVERNAME\n    SELECT 'here' AS [where]\nELSE\n    SELECT @who AS [where]", "SET|DECLARE|SET|[here] SELECT"},
	{"IF 1 = 1 ALTER AVAILABILITY GROUP shop MODIFY REPLICA ON 'b' WITH (BACKUP_PRIORITY = 7)", "ALTER AVAILABILITY GROUP"},
	{"RAISERROR('100%% sure', 10, 1)", "'100% sure' RAISERROR"},
	{"RAISERROR('replica %s is %d s behind', 10, 1)", "22023 the message of RAISERROR has more places than values, of which there are 0"},
	{"DECLARE @r sysname = 'b', @n int = 7 RAISERROR('replica %s is %d s behind', 10, 1, @r, @n) WITH NOWAIT, LOG", "DECLARE|'replica b is 7 s behind' RAISERROR"},
	{"DECLARE @d sysname = 'shop' IF NOT EXISTS (SELECT 1 FROM sys.databases WHERE name = @d) RAISERROR(N'no database %s', 16, 1, @d)", "P0001 no database shop"},
	{"RAISERROR('%d of %d', 10, 1, 1)", "22023 the message of RAISERROR has more places than values, of which there are 1"},
	{"RAISERROR('%d', 10, 1, 1, 2)", "22023 RAISERROR has 2 values, and its message has 1 places"},
	{"RAISERROR('%d', 10, 1, 'x')", "22023 a value of RAISERROR is not of the type that its place %d expects"},
	{"RAISERROR('%s', 10, 1, 5)", "22023 a value of RAISERROR is not of the type that its place %s expects"},
	{"RAISERROR('%s', 10, 1, 1.5)", "22023 the value 1 of RAISERROR is neither a text nor a whole number"},
	{"DECLARE @x int RAISERROR('%d and %s', 10, 1, @x, NULL)", "DECLARE|'(null) and (null)' RAISERROR"},
	{"RAISERROR('[%5d][%-5d][%05d][%+d][%.3d][%x][%#X][%o][%u]', 10, 1, 42, 42, 42, 42, 7, 255, 255, 8, -1)", "'[   42][42   ][00042][+42][007][ff][0XFF][10][4294967295]' RAISERROR"},
	{"RAISERROR('[%5s][%-5s][%.2s][%*s]', 10, 1, 'ab', 'ab', 'abcd', 4, 'x')", "'[   ab][ab   ][ab][   x]' RAISERROR"},
	{"DECLARE @b bigint = 5000000000 RAISERROR('%I64d', 10, 1, @b)", "DECLARE|'5000000000' RAISERROR"},
	{"DECLARE @b bigint = 5000000000 RAISERROR('%d', 10, 1, @b)", "22023 the value 5000000000 of RAISERROR is beyond an int, which its place expects"},
	{"RAISERROR('%9999d', 10, 1, 1)", "22023 a width or a precision in the message of RAISERROR is 9999, and not a number from 0 to 2047"},
	{"RAISERROR('half of it: 50%', 10, 1)", "22023 the message of RAISERROR has a percent sign that begins no place for a value"},
	{"RAISERROR(50001, 16, 1)", "0A000 RAISERROR with the number of a message is not supported in the console"},
	{"RAISERROR('x', 10, 1) WITH FROB", "42601 incorrect syntax near 'FROB': expected NOWAIT, LOG or SETERROR"},
	{"RAISERROR('x', 10)", "42601 incorrect syntax near ')': expected a message, a severity and a state"},
	{"DECLARE @s nvarchar(max) = REPLICATE('x', 3000) RAISERROR(@s, 10, 1)", "DECLARE|'" + strings.Repeat("x", 2044) + "...' RAISERROR"},
	{"IF 1 = 0 THEN 1 WHEN 1 = 1 PRINT 'x'", "42601 syntax error at or near \"THEN\""},
	{"IF ((SELECT COUNT(*) FROM sys.availability_replicas) > 1) PRINT 'many'", "'many' PRINT"},
	{"sp_who2", "0A000 EXEC sp_who2 is not supported in the console"},
	{"master.dbo.xp_readerrorlog 0, 1", "0A000 EXEC xp_readerrorlog is not supported in the console"},
	{"BACKUP DATABASE app TO DISK = N'x.bak'", "0A000 BACKUP is not a statement of the console"},
	// In T-SQL a value sees what the values and the rows before it have assigned.
	{"DECLARE @s varchar(100) SELECT @s = COALESCE(@s + ', ', '') + name FROM sys.databases", "0A000 a SELECT that reads @s, which it assigns, is not supported in the console"},
	{"DECLARE @a int, @b int SELECT @a = 1, @b = @A + 1", "0A000 a SELECT that reads @A, which it assigns, is not supported in the console"},
	{"DECLARE @i int = 1 SELECT @i = @i + 1 SELECT @i", "DECLARE|SET|[2] SELECT"},
	{"DECLARE @v varchar = 'abc', @c char = 'xy' SELECT @v + @c", "DECLARE|[ax] SELECT"},
	{"DECLARE @n int = (SELECT name FROM sys.dm_hadr_availability_group_states)", "42703 no such column: name"},
	{"DECLARE @x varchar(50) = (SELECT replica_server_name FROM sys.availability_replicas)", "21000 a query in an expression returned more than one row"},
	{"IF 1 PRINT 'x'", "42804 a condition is expected, and not a whole number"},
	// Settings that change what other statements mean.
	{"SET NOEXEC ON\nALTER AVAILABILITY GROUP shop MODIFY REPLICA ON 'b' WITH (BACKUP_PRIORITY = 7)", "0A000 SET NOEXEC ON is not supported in the console: the statements behind it would mean what they mean without it"},
	{"SET ROWCOUNT 1", "0A000 SET ROWCOUNT 1 is not supported in the console: the statements behind it would mean what they mean without it"},
	{"SET ROWCOUNT 0\nSET DATEFIRST 7\nSET LANGUAGE us_english\nSET ANSI_NULLS, QUOTED_IDENTIFIER ON\nSET XACT_ABORT ON", "SET|SET|SET|SET|SET"},
	{"SET DATEFIRST 1", "0A000 SET DATEFIRST 1 is not supported in the console: the statements behind it would mean what they mean without it"},
	{"SET ARITHABORT, ANSI_NULLS OFF", "0A000 SET ARITHABORT, ANSI_NULLS OFF is not supported in the console: the statements behind it would mean what they mean without it"},
	{"SET ROLE coterie_viewer", "0A000 SET ROLE is not supported in the console: the statements would go on with the rights of me"},
	{"SET SESSION AUTHORIZATION 'x'", "0A000 SET AUTHORIZATION is not supported in the console: the statements would go on with the rights of me"},
	{"SET ROLE NONE; SET SESSION AUTHORIZATION DEFAULT; RESET ROLE", "SET|SET|RESET"},
	{"CHECKPOINT", "0A000 CHECKPOINT is not a statement of the console"},
	{"USE [master]", "USE"},
	{"USE shop", "'USE has no effect: the statements go on in the console; connect to another database for its data' USE"},
	{"BEGIN TRAN; SELECT @@TRANCOUNT; COMMIT; SELECT @@TRANCOUNT", "BEGIN|[1] SELECT|COMMIT|[0] SELECT"},
}

// answered returns results in a short form.
func answered(r Result, err error) string {
	var known *Error
	if errors.As(err, &known) {
		return known.State + " " + known.Message
	}
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, x := range append([]Result{r}, r.Next...) {
		text := ""
		for _, n := range x.Notices {
			text += "'" + n.Message + "' "
		}
		for _, row := range x.Rows {
			text += fmt.Sprint(row) + " "
		}
		out = append(out, text+x.Tag)
	}
	return strings.Join(out, "|")
}

// TestBatches holds what variables and control flow do.
func TestBatches(t *testing.T) {
	for _, tt := range batches {
		s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
		if got := answered(s.Run(t.Context(), tt.text)); got != tt.want {
			t.Errorf("%s\n got %s\nwant %s", tt.text, got, tt.want)
		}
		if s.variables != nil {
			t.Errorf("%s: variables are left", tt.text)
		}
	}
}

// TestFailedStatementHasNoAnswer holds that a statement which failed has no tag, as if it had been done, alone and
// behind others.
func TestFailedStatementHasNoAnswer(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"SELECT 1 / 0":                      "",
		"SET work_mem = 1; SELECT 1 / 0":    "SET",
		"COMMIT":                            "COMMIT",
		"SET TRANSACTION ISOLATION LEVEL x": "SET",
		"SET ROWCOUNT 5":                    "",
		"SET client_encoding = 'LATIN1'":    "",
	} {
		s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
		r, err := s.Run(t.Context(), text)
		tags := r.Tag
		for _, next := range r.Next {
			tags += " " + next.Tag
		}
		if tags != want {
			t.Errorf("%s: %q, want %q: %v", text, tags, want, err)
		}
	}
}

// TestBatchesInPieces holds that a client which sends a batch in pieces, as psql -f does, is told so: what was meant as
// a guard guards nothing then.
func TestBatchesInPieces(t *testing.T) {
	for text, want := range map[string]string{
		"ELSE\n  PRINT 'secondary';": "42601", "SELECT @x": "42704", "SELECT @x = 1": "42704",
		"IF 1 = 1 RETURN": "", "IF 1 = 1 BEGIN PRINT 'x' RETURN END": "",
	} {
		s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
		r, err := s.Run(t.Context(), text)
		hint := ""
		for _, x := range append([]Result{r}, r.Next...) {
			for _, n := range x.Notices {
				hint += n.Severity + n.Message
			}
		}
		state := ""
		if known := (*Error)(nil); errors.As(err, &known) {
			state, hint = known.State, known.Hint
		}
		if state != want || !strings.Contains(hint, "coterie sql -f") || err == nil && !strings.Contains(hint, "WARNING") {
			t.Errorf("%s: %v, %s", text, err, hint)
		}
	}
}

// unreadable are scripts whose first statement is right, and one of whose others is not.
var unreadableScripts = map[string]string{
	"%s; SELCT 1": "0A000", "%s\nSELCT 1": "42601", "%s; ALTER AVAILABILITY GROUP shop FROB": "42601", "%s\nGO\nSELECT name FORM sys.databases": "42601",
	"IF 1 = 1 %s ELSE SELECT 1 +": "42601", "IF 1 = 1 BEGIN %s END\nPRINT 'a' +": "42601", "DECLARE @x int = 1\n%s\nIF 1 = 1 THEN PRINT 'x'": "42601",
	"%s; GO": "42601", "%s; GO\nPRINT 'x'": "42601", "%s; GO SELECT 1": "42601", "%s; =": "0A000",
	"%s\nEXEC sp_who2": "0A000", "%s\nWAITFOR DELAY '00:00:05'": "0A000",
	"%s\nDECLARE @x int = 1 +": "42601", "DECLARE @x int\n%s\nSET @x = 1 +": "42601", "DECLARE @x sysname\n%s\nSELECT @x = name FROM sys.databases WHERE": "42601",
	"%s\nRAISERROR('x', 1 +, 1)": "42601",
	"%s\nWHILE 1 = 1 +\nBREAK":   "42601", "BEGIN TRY %s; SELCT 1 END TRY BEGIN CATCH PRINT 'x' END CATCH": "42601", "BEGIN TRY %s END TRY BEGIN CATCH PRINT 1 + END CATCH": "42601",
	"%s\nBREAK": "42601", "%s;\nTHROW": "42601", "%s\nTHROW 50000, 'x', 1": "42601", "%s;\nTHROW 50000, 'x' + 'y', 1": "42601", "BEGIN TRY %s END TRY": "42601",
}

// TestNothingIsDoneOfAnUnreadableScript holds that a typing mistake leaves nothing half done, as in both servers, which
// read a text before they run it.
func TestNothingIsDoneOfAnUnreadableScript(t *testing.T) {
	for text, want := range unreadableScripts {
		w := newWorld(t)
		conn, err := pgconn.Connect(t.Context(), dsn(serve(t, w, Principal{User: "me", May: ddl.MayAdminister})))
		if err != nil {
			t.Fatal(err)
		}
		text = fmt.Sprintf(text, "ALTER AVAILABILITY GROUP shop MODIFY REPLICA ON 'b' WITH (BACKUP_PRIORITY = 7)")
		_, err = conn.Exec(t.Context(), text).ReadAll()
		_ = conn.Close(t.Context())
		var bad *pgconn.PgError
		if !errors.As(err, &bad) || bad.Code != want || len(w.ran) != 0 {
			t.Errorf("%s: %v, %q", text, err, w.ran)
		}
	}
}

// TestBatchesNeedPermission holds that a statement within IF needs what it needs alone.
func TestBatchesNeedPermission(t *testing.T) {
	s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayLook})
	if got := answered(s.Run(t.Context(), "IF 1 = 1 BEGIN ALTER AVAILABILITY GROUP shop SUSPEND END")); !strings.HasPrefix(got, "42501") {
		t.Error(got)
	}
}

// TestScriptsWithGo holds that a script's batches are repeated and do not share variables.
func TestScriptsWithGo(t *testing.T) {
	parts, err := batch.Split("DECLARE @x int = 1 PRINT @x\nGO 2\nSELECT @x")
	if err != nil || len(parts) != 3 {
		t.Fatal(parts, err)
	}
	s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
	var got []string
	for _, p := range parts {
		got = append(got, answered(s.Run(t.Context(), p.Text)))
	}
	if want := "DECLARE|'1' PRINT, DECLARE|'1' PRINT, 42704 must declare the scalar variable \"@x\""; strings.Join(got, ", ") != want {
		t.Error(got)
	}
}

// TestBatchesByTheProtocol holds what a client of the simple protocol receives: each answer in turn, notices, and the
// place of an error in the whole text.
func TestBatchesByTheProtocol(t *testing.T) {
	addr := serve(t, newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
	config, err := pgconn.ParseConfig(dsn(addr))
	if err != nil {
		t.Fatal(err)
	}
	var notices []string
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notices = append(notices, n.Message) }
	c, err := pgconn.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	list, err := c.Exec(t.Context(), "DECLARE @x int = 5\nIF @x > 1 PRINT 'big'\nSELECT @x AS x\nSELECT name FROM sys.databases OPTION (RECOMPILE)\nGO 2\nSELECT 2 AS y").ReadAll()
	var got []string
	for _, r := range list {
		text := r.CommandTag.String()
		for _, row := range r.Rows {
			text += fmt.Sprintf(" %s", row)
		}
		got = append(got, text)
	}
	once := "DECLARE, PRINT, SELECT 1 [5], SELECT 1 [postgres], "
	if err != nil || strings.Join(got, ", ") != once+once+"SELECT 1 [2]" || len(notices) != 4 || notices[0] != "big" {
		t.Errorf("%q, %q, %v", got, notices, err)
	}
	text := "DECLARE @x int = 5\nIF @x = 5 ALTER AVAILABILITY GROUP shop FROB"
	_, err = c.Exec(t.Context(), text).ReadAll()
	var bad *pgconn.PgError
	if !errors.As(err, &bad) || int(bad.Position) != strings.Index(text, "FROB")+1 {
		t.Errorf("%v, %+v", err, bad)
	}
}
