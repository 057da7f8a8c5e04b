package console

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/admin/batch"
	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// about tells all of the error of a CATCH block in one row.
const about = "SELECT ERROR_NUMBER(), ERROR_SEVERITY(), ERROR_STATE(), ERROR_LINE(), ERROR_PROCEDURE(), ERROR_MESSAGE()"

// caughtBatches are scripts by the documented semantics of TRY, THROW, RAISERROR and WHILE, with the answers.
var caughtBatches = []struct{ text, want string }{
	{"BEGIN TRY SELECT 1 END TRY BEGIN CATCH SELECT 2 END CATCH SELECT 3", "[1] SELECT|[3] SELECT"},
	{"BEGIN TRY\n  SELECT 1 / 0\n  SELECT 'never'\nEND TRY\nBEGIN CATCH\n  " + about + "\nEND CATCH;\nSELECT 'on' AS x", "CATCH|[8134 16 1 2 <nil> division by zero] SELECT|[on] SELECT"},
	{"BEGIN TRY\n\n  RAISERROR('bad %s', 14, 5, 'day')\nEND TRY BEGIN CATCH " + about + " END CATCH", "CATCH|[50000 14 5 3 <nil> bad day] SELECT"},
	{"BEGIN TRY RAISERROR('note', 10, 1) PRINT 'on' END TRY BEGIN CATCH PRINT 'never' END CATCH", "'note' RAISERROR|'on' PRINT"},
	{"BEGIN TRY RAISERROR('x', 16, -5) END TRY BEGIN CATCH SELECT ERROR_STATE() END CATCH", "CATCH|[1] SELECT"},
	{"BEGIN TRY THROW 51000, 'gone: 15%%', 7; END TRY BEGIN CATCH " + about + " END CATCH", "CATCH|[51000 16 7 1 <nil> gone: 15%] SELECT"},
	{"DECLARE @n int = 50001, @m nvarchar(100) = N'of a variable', @s int = 0; THROW @n, @m, @s", "P0001 of a variable"},
	{"PRINT 'a'; THROW 50001, N'x', 1; PRINT 'never'", "P0001 x"},
	{"THROW 49999, 'x', 1", "22023 the error number of THROW is outside of the range from 50000 to 2147483647"},
	{"THROW 50000, 'x', 256", "22023 the state of THROW is outside of the range from 0 to 255"},
	{"THROW 50000, '15% more', 1", "22023 the message of THROW has a percent sign alone"},
	{"BEGIN TRY SELECT 1 / 0 END TRY BEGIN CATCH PRINT 'before'; THROW; END CATCH PRINT 'never'", "22012 division by zero"},
	{"BEGIN TRY\nBEGIN TRY\nSELECT 1 / 0\nEND TRY BEGIN CATCH;\nTHROW\nEND CATCH\nEND TRY BEGIN CATCH " + about + " END CATCH", "CATCH|CATCH|[8134 16 1 3 <nil> division by zero] SELECT"},
	{
		"BEGIN TRY SELECT 1 / 0 END TRY BEGIN CATCH BEGIN TRY RAISERROR('inner', 11, 2) END TRY BEGIN CATCH SELECT ERROR_MESSAGE() END CATCH SELECT ERROR_MESSAGE() END CATCH SELECT ERROR_MESSAGE()",
		"CATCH|CATCH|[inner] SELECT|[division by zero] SELECT|[<nil>] SELECT",
	},
	{"BEGIN TRY SELECT 1 / 0 END TRY BEGIN CATCH END CATCH SELECT 'on' AS x", "CATCH|[on] SELECT"},
	{"BEGIN TRY SELECT CAST('a' AS int) END TRY BEGIN CATCH SELECT ERROR_NUMBER() END CATCH", "CATCH|[245] SELECT"},
	{"BEGIN TRY SELECT CAST('a' AS datetime) END TRY BEGIN CATCH SELECT ERROR_NUMBER() END CATCH", "CATCH|[241] SELECT"},
	{"BEGIN TRY SELECT CAST('a' AS decimal(5, 1)) END TRY BEGIN CATCH SELECT ERROR_NUMBER() END CATCH", "CATCH|[8114] SELECT"},
	{"BEGIN TRY SELECT CAST(1e9 AS smallint) END TRY BEGIN CATCH SELECT ERROR_NUMBER() END CATCH", "CATCH|[8115] SELECT"},
	{"BEGIN TRY SELECT (SELECT replica_server_name FROM sys.availability_replicas) END TRY BEGIN CATCH SELECT ERROR_NUMBER() END CATCH", "CATCH|[512] SELECT"},
	// A mistake in the text itself is caught by no CATCH.
	{"BEGIN TRY SELECT nme FROM sys.databases END TRY BEGIN CATCH PRINT 'never' END CATCH", "42703 no such column: nme"},
	{"BEGIN TRY SELECT * FROM sys.nothing END TRY BEGIN CATCH PRINT 'never' END CATCH", "42P01 no such table: sys.nothing"},
	{"BEGIN TRY SET @x = 1 END TRY BEGIN CATCH PRINT 'never' END CATCH", "42704 must declare the scalar variable \"@x\""},
	{"BEGIN TRY EXEC sp_who2 END TRY BEGIN CATCH PRINT 'never' END CATCH", "0A000 EXEC sp_who2 is not supported in the console"},
	{"BEGIN TRY SELECT 1 END TRY SELECT 2 BEGIN CATCH SELECT 3 END CATCH", "42601 incorrect syntax near 'SELECT': expected BEGIN CATCH"},
	{"BEGIN TRY END TRY BEGIN CATCH END CATCH", "42601 incorrect syntax near 'END': expected a statement"},
	{"BEGIN CATCH END CATCH", "42601 incorrect syntax near 'CATCH': expected END TRY before it"},
	{"THROW", "42601 a THROW without values stands outside of CATCH"},
	{"PRINT 'a' THROW 50000, 'x', 1", "42601 incorrect syntax near 'THROW'"},
	{"IF 1 = 1 THROW 50000, 'x', 1", "P0001 x"},
	// Severities.
	{"RAISERROR('x', 19, 1)", "42501 error severity levels greater than 18 need WITH LOG, and are for administrators"},
	{"RAISERROR('x', 19, 1) WITH LOG", "P0001 x"},
	{"RAISERROR('x', 20, 1) WITH LOG", "0A000 RAISERROR with a severity above 19 is not supported in the console"},
	{"RAISERROR('x', -3, 1)", "'x' RAISERROR"},
	{"RAISERROR('x', 16, 256)", "22023 the state of RAISERROR is at most 255"},
	{"DECLARE @s int = 11, @t int = 3 BEGIN TRY RAISERROR('x', @s, @t) END TRY BEGIN CATCH SELECT ERROR_SEVERITY(), ERROR_STATE() END CATCH", "DECLARE|CATCH|[11 3] SELECT"},
	// Loops.
	{"DECLARE @i int = 0 WHILE @i < 3 BEGIN SET @i += 1 IF @i = 2 CONTINUE PRINT @i END SELECT @i", "DECLARE|SET|IF|'1' PRINT|SET|SET|IF|'3' PRINT|WHILE|[3] SELECT"},
	{"DECLARE @i int = 0 WHILE 1 = 1 BEGIN SET @i = @i + 1; IF @i = 2 BREAK; END SELECT @i", "DECLARE|SET|IF|SET|WHILE|[2] SELECT"},
	{"DECLARE @i int = 0, @j int WHILE @i < 2 BEGIN SET @i += 1 SET @j = 0 WHILE 1 = 1 BEGIN SET @j += 1 IF @j > 1 BREAK END END SELECT @i, @j", "DECLARE|SET|SET|SET|IF|SET|WHILE|SET|SET|SET|IF|SET|WHILE|WHILE|[2 2] SELECT"},
	{"DECLARE @i int = 0 WHILE @i < 5 BEGIN SET @i += 1 BEGIN TRY IF @i = 2 BREAK SELECT 1 / (@i - 1) END TRY BEGIN CATCH CONTINUE END CATCH PRINT 'never' END SELECT @i", "DECLARE|SET|IF|CATCH|SET|WHILE|[2] SELECT"},
	{"WHILE 1 = 0 PRINT 'never'", "WHILE"},
	{"BEGIN TRY WHILE 1 = 1 CONTINUE END TRY BEGIN CATCH PRINT 'never' END CATCH", "54000 the loops of a batch have at most 1000 turns"},
	{"WHILE 1 = 1 BEGIN PRINT 'x' RETURN END PRINT 'never'", "'x' PRINT"},
	{"BREAK", "42601 a BREAK stands outside of WHILE"},
	{"IF 1 = 1 CONTINUE", "42601 a CONTINUE stands outside of WHILE"},
	// The last statement.
	{"SELECT name FROM sys.databases SELECT @@ROWCOUNT, @@ERROR", "[postgres] SELECT|[1 0] SELECT"},
	{"SELECT name FROM sys.databases WHERE 1 = 0\nIF @@ROWCOUNT = 0 SELECT 'none', @@ROWCOUNT", "SELECT|[none 0] SELECT"},
	{"DECLARE @n sysname SELECT @n = replica_server_name FROM sys.availability_replicas SELECT @@ROWCOUNT", "DECLARE|SET|[2] SELECT"},
	{"DECLARE @n int SET @n = 5 SELECT @@ROWCOUNT\nPRINT 'x' SELECT @@ROWCOUNT", "DECLARE|SET|[1] SELECT|'x' PRINT|[0] SELECT"},
	{"BEGIN TRY SELECT 1 / 0 END TRY BEGIN CATCH SELECT @@ERROR SELECT @@ERROR END CATCH", "CATCH|[8134] SELECT|[0] SELECT"},
	{"RAISERROR('x', 5, 1) SELECT @@ERROR\nRAISERROR('x', 5, 1) WITH SETERROR SELECT @@ERROR", "'x' RAISERROR|[0] SELECT|'x' RAISERROR|[50000] SELECT"},
	{"SELECT @@ROWCOUNT", "0A000 @@ROWCOUNT before the first statement of a session is not supported in the console"},
	// Transactions.
	{"SELECT XACT_STATE()\nBEGIN TRAN SELECT XACT_STATE(), @@TRANCOUNT\nCOMMIT SELECT XACT_STATE()", "[0] SELECT|BEGIN|[1 1] SELECT|COMMIT|[0] SELECT"},
	{"BEGIN TRY BEGIN TRAN SELECT 1 / 0 COMMIT TRAN END TRY BEGIN CATCH SELECT XACT_STATE(), @@TRANCOUNT IF @@TRANCOUNT > 0 ROLLBACK TRAN; SELECT @@TRANCOUNT END CATCH", "BEGIN|CATCH|[1 1] SELECT|ROLLBACK|[0] SELECT"},
	{"SET XACT_ABORT ON BEGIN TRY BEGIN TRANSACTION SELECT 1 / 0 COMMIT END TRY BEGIN CATCH SELECT XACT_STATE() IF XACT_STATE() = -1 ROLLBACK SELECT XACT_STATE() END CATCH", "SET|BEGIN|CATCH|[-1] SELECT|ROLLBACK|[0] SELECT"},
	{"SET XACT_ABORT ON BEGIN TRY BEGIN TRAN SELECT 1 / 0 END TRY BEGIN CATCH COMMIT END CATCH", "25P02 the transaction cannot be committed: roll it back"},
	{"BEGIN TRAN BEGIN TRAN", "0A000 BEGIN TRAN within a transaction is not supported in the console"},
	{"USE master PRINT 'x'", "USE|'x' PRINT"},
	{"SET NOCOUNT ON PRINT 'x' SET NOCOUNT OFF", "SET|'x' PRINT|SET"},
}

// TestCaughtErrors holds what TRY, THROW, RAISERROR and WHILE do.
func TestCaughtErrors(t *testing.T) {
	for _, tt := range caughtBatches {
		s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
		if got := answered(s.Run(t.Context(), tt.text)); got != tt.want {
			t.Errorf("%s\n got %s\nwant %s", tt.text, got, tt.want)
		}
		if s.variables != nil || s.caught != nil {
			t.Errorf("%s: variables or an error are left", tt.text)
		}
	}
}

// TestCaughtStatements holds that the refusal of a statement of the language is caught with its number, and that what
// was answered before an error is not lost.
func TestCaughtStatements(t *testing.T) {
	s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
	text := "BEGIN TRY ALTER AVAILABILITY GROUP shop MODIFY REPLICA ON 'nobody' WITH (BACKUP_PRIORITY = 7) END TRY BEGIN CATCH SELECT ERROR_NUMBER(), ERROR_MESSAGE() END CATCH"
	r, err := s.Run(t.Context(), text)
	if err != nil || r.Tag != "CATCH" || len(r.Next) != 1 || r.Next[0].Rows[0][0] != int64(41167) {
		t.Errorf("%v, %v", r, err)
	}
	look := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayLook})
	if got := answered(look.Run(t.Context(), "BEGIN TRY ALTER AVAILABILITY GROUP shop SUSPEND END TRY BEGIN CATCH SELECT ERROR_NUMBER() END CATCH")); got != "CATCH|[229] SELECT" {
		t.Error(got)
	}
	r, err = s.Run(t.Context(), "PRINT 'a' SELECT 1 SELECT 1 / 0")
	var known *Error
	if !errors.As(err, &known) || answered(r, nil) != "'a' PRINT|[1] SELECT" {
		t.Errorf("%v, %v", r, err)
	}
}

// TestLinesOfErrors holds that ERROR_LINE counts from the beginning of the batch, and a batch begins below GO.
func TestLinesOfErrors(t *testing.T) {
	catch := "BEGIN TRY\nSELECT 1 / 0 END TRY BEGIN CATCH SELECT ERROR_LINE() AS n END CATCH"
	parts, err := batch.Split("-- a script\n\n" + catch + "\nGO 2 -- twice\n\n" + catch)
	if err != nil || len(parts) != 3 {
		t.Fatal(parts, err)
	}
	var got []string
	for _, p := range parts {
		s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
		got = append(got, answered(s.Run(t.Context(), p.Text)))
	}
	if want := "CATCH|[4] SELECT, CATCH|[4] SELECT, CATCH|[3] SELECT"; strings.Join(got, ", ") != want {
		t.Error(got)
	}
}

// TestCaughtByTheProtocol holds that a client gets whole answers of a batch whose query fails after it has sent rows,
// and the place of an error that is passed on.
func TestCaughtByTheProtocol(t *testing.T) {
	c, err := pgconn.Connect(t.Context(), dsn(serve(t, newWorld(t), Principal{User: "me", May: ddl.MayAdminister})))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
	list, err := c.Exec(t.Context(), "BEGIN TRY SELECT 6 / (3 - x) AS x FROM (VALUES (1), (2), (3)) AS v(x) END TRY BEGIN CATCH SELECT ERROR_NUMBER() AS n END CATCH SELECT @@ROWCOUNT AS c").ReadAll()
	if err != nil || len(list) != 3 || len(list[0].Rows) != 2 || list[0].CommandTag.String() != "CATCH" || string(list[1].Rows[0][0]) != "8134" || string(list[2].Rows[0][0]) != "1" {
		t.Errorf("%v, %v", list, err)
	}
	_, err = c.Exec(t.Context(), "SELECT 1 / 0").ReadAll()
	if err == nil {
		t.Error("no error")
	}
	list, err = c.Exec(t.Context(), "SELECT @@ERROR AS e").ReadAll()
	if err != nil || string(list[0].Rows[0][0]) != "8134" {
		t.Errorf("%v, %v", list, err)
	}
	text := "SELECT 1\nGO\n  BEGIN TRY SELECT 1 END TRY BEGIN CATCH SELECT 2 END CATCH ALTER AVAILABILITY GROUP shop FROB"
	_, err = c.Exec(t.Context(), text).ReadAll()
	var bad *pgconn.PgError
	if !errors.As(err, &bad) || int(bad.Position) != strings.Index(text, "FROB")+1 {
		t.Errorf("%v, %+v", err, bad)
	}
	_, err = c.Exec(t.Context(), "BEGIN TRY SELECT 1 / 0 END TRY BEGIN CATCH; THROW 50001, 'mine', 1 END CATCH").ReadAll()
	if !errors.As(err, &bad) || bad.Code != "P0001" || bad.Message != "Msg 50001: mine" {
		t.Errorf("%v, %+v", err, bad)
	}
}

// TestLoopsAreCanceled holds that a request to cancel ends a loop, also when it arrives between two statements.
func TestLoopsAreCanceled(t *testing.T) {
	cancel := make(chan struct{}, 1)
	s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
	s.interrupt = cancel
	turns := 0
	err := s.compound(t.Context(), "WHILE 1 = 1 PRINT 'x'", func(batch.Statement) error { return nil }, func(Result) {
		if turns++; turns == 3 {
			cancel <- struct{}{}
			time.Sleep(10 * time.Millisecond)
		}
	})
	var known *Error
	if !errors.As(err, &known) || known.State != "57014" || turns > 10 {
		t.Errorf("%v after %d turns", err, turns)
	}
	if s.interrupt == nil {
		t.Error("the session has no requests to cancel any more")
	}
}
