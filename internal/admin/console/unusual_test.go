package console

import (
	"errors"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/batch"
	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// unusualBatches are scripts as T-SQL allows them and careful administrators do not write them, with the answers to
// their parts; a name that is one in PostgreSQL, and no statement, stays a name.
var unusualBatches = []struct{ text, want string }{
	// Several statements on one line.
	{"SELECT 1 PRINT 'x'", "[1] SELECT|'x' PRINT"},
	{"SELECT 1 PRINT N'x' SELECT 2", "[1] SELECT|'x' PRINT|[2] SELECT"},
	{"SELECT 1 AS a print 1", "[1] SELECT|'1' PRINT"},
	{"SELECT 1 a PRINT @@SERVERNAME", "[1] SELECT|'a' PRINT"},
	{"SELECT '+' PRINT 'x'", "[+] SELECT|'x' PRINT"},
	{"SELECT name FROM sys.databases WHERE name = 'postgres' PRINT 'done' SELECT 2", "[postgres] SELECT|'done' PRINT|[2] SELECT"},
	{"SELECT COUNT(*) FROM sys.databases GROUP BY name PRINT ('x')", "[1] SELECT|'x' PRINT"},
	{"SELECT name FROM sys.databases ORDER BY name DESC PRINT 'x'", "[postgres] SELECT|'x' PRINT"},
	{"SELECT 1 print", "[1] SELECT"},
	{"SELECT 1 print FROM sys.databases", "[1] SELECT"},
	{"SELECT 1 print, 2 exec, 3 AS return", "[1 2 3] SELECT"},
	{"SELECT print.name FROM sys.databases print WHERE print.name = 'postgres'", "[postgres] SELECT"},
	{"SELECT if.name FROM sys.databases if JOIN sys.databases use ON if.name = use.name", "[postgres] SELECT"},
	{"SELECT 1 DECLARE @x int = 1 SELECT @x", "[1] SELECT|DECLARE|[1] SELECT"},
	{"SELECT 1 IF 1 = 1 SELECT 2 ELSE SELECT 3", "[1] SELECT|[2] SELECT"},
	{"SELECT 1 IF EXISTS (SELECT 1) PRINT 'y'", "[1] SELECT|'y' PRINT"},
	{"SELECT 1 WHILE 1 = 0 SELECT 2", "[1] SELECT|WHILE"},
	{"SELECT 1 EXEC sp_who", "[1] SELECT, 0A000 EXEC sp_who is not supported in the console"},
	{"SELECT 1 SET NOCOUNT ON SELECT 2", "[1] SELECT, SET, [2] SELECT"},
	{"SELECT 1 USE master SELECT 2", "[1] SELECT, USE, [2] SELECT"},
	{"SELECT 1 BEGIN SELECT 2 END", "[1] SELECT, [2] SELECT"},
	{"SELECT 1 BEGIN TRAN SELECT 2 COMMIT SELECT 3", "[1] SELECT, BEGIN, [2] SELECT, COMMIT, [3] SELECT"},
	{"SELECT 1 BEGIN TRY SELECT 1/0 END TRY BEGIN CATCH PRINT 'c' END CATCH", "[1] SELECT|CATCH|'c' PRINT"},
	{"SELECT 1 RETURN SELECT 2", "[1] SELECT"},
	{"SELECT 1 RETURN; SELECT 2", "0A000 RETURN behind a query on its line is not supported in the console, as it is a statement in T-SQL and a name in PostgreSQL"},
	{"SELECT 1 COMMIT", "0A000 COMMIT behind a query on its line is not supported in the console, as it is a statement in T-SQL and a name in PostgreSQL"},
	{"SELECT 1 rollback; SELECT 2", "0A000 ROLLBACK behind a query on its line is not supported in the console, as it is a statement in T-SQL and a name in PostgreSQL"},
	{"SELECT 1 RAISERROR ('x', 10, 1) SELECT 2", "[1] SELECT|'x' RAISERROR|[2] SELECT"},
	{"SELECT 1 ALTER AVAILABILITY GROUP shop MODIFY REPLICA ON 'b' WITH (BACKUP_PRIORITY = 7)", "[1] SELECT, ALTER AVAILABILITY GROUP"},
	{"SELECT 1 WAITFOR DELAY '0:0:1'", "0A000 WAITFOR is not supported in the console"},
	{"SELECT 1 SELECT 2 SELECT 3", "[1] SELECT, [2] SELECT, [3] SELECT"},
	{"SELECT (1) SELECT (2)", "[1] SELECT, [2] SELECT"},
	{"SELECT 1 AS [SELECT] SELECT 2", "[1] SELECT, [2] SELECT"},
	{"SELECT 1 WHERE 1 IN (SELECT 1) SELECT 2", "[1] SELECT, [2] SELECT"},
	// An option of the shell is a remark here, which is refused wherever the statement stands.
	{"ALTER AVAILABILITY GROUP shop FAILOVER --force", "42601 --force behind 'FAILOVER' is a remark in SQL, and has no effect"},
	{"SELECT 1; ALTER AVAILABILITY GROUP shop FAILOVER --force\n;", "[1] SELECT, 42601 --force behind 'FAILOVER' is a remark in SQL, and has no effect"},
	{"IF 1 = 1 ALTER AVAILABILITY GROUP shop FAILOVER --now", "42601 --now behind 'FAILOVER' is a remark in SQL, and has no effect"},
	{"SELECT 1 --force\nGO", "[1] SELECT"},
	// GO.
	{"SELECT 1\n  Go 2 -- twice", "[1] SELECT, [1] SELECT"},
	{"SELECT 1\ngo 2;", "[1] SELECT, [1] SELECT"},
	{"SELECT 1\nGO 0", "22023 GO 0: a batch is run 1 to 100 times"},
	{"SELECT 1\nGO 101", "22023 GO 101: a batch is run 1 to 100 times"},
	{"SELECT 1\nGO 2.5", "22023 GO 2.5: a batch is run 1 to 100 times"},
	{"\nGO\nGO\nSELECT 1", "[1] SELECT"},
	{"SELECT 'a\nGO\nb'", "[a\nGO\nb] SELECT"},
	{"/* x\nGO\ny */ SELECT 1", "[1] SELECT"},
	// IF.
	{"IF EXISTS(SELECT * FROM sys.databases WHERE name='none')\nPRINT 'a'\nELSE\nPRINT 'b'", "'b' PRINT"},
	{"if exists (select 1) and 1 = 0 print 'a' else if 1=1 print 'c'", "'c' PRINT"},
	{"IF NULL = NULL PRINT 'a' ELSE PRINT 'b'", "'b' PRINT"},
	{"IF 1 = 0; PRINT 'x'", "IF|'x' PRINT"},
	{"IF 1 IN (1, 2) AND NOT (2 > 3) PRINT 'x'", "'x' PRINT"},
	{"IF (SELECT COUNT(*) FROM sys.databases) > 100 SELECT 1 ELSE SELECT 2 SELECT 3", "[2] SELECT|[3] SELECT"},
	{"IF DB_ID('none') IS NULL PRINT 'no such database'", "'no such database' PRINT"},
	// DECLARE and SET.
	{"DECLARE @a int, @b int SET @a = 5 SET @b = @A * 2 SELECT @a, @b", "DECLARE|SET|SET|[5 10] SELECT"},
	{"DECLARE @a char(5) = 'ab' SELECT @a + '|'", "DECLARE|[ab   |] SELECT"},
	{"DECLARE @a char(5) SELECT ISNULL(@a, 'x') + '|'", "DECLARE|[x    |] SELECT"},
	{"DECLARE @a tinyint = 256", "22003 integer out of range: 256"},
	{"DECLARE @a date = '2023-02-29'", `22P02 conversion failed when converting "2023-02-29" to a time: write it as 2026-11-21 12:00:00`},
	{"DECLARE @a datetime = '2024-02-29' SELECT YEAR(DATEADD(year, 1, @a))", "DECLARE|[2025] SELECT"},
	{"DECLARE @a decimal(5,2) = 1.005 SELECT @a", "DECLARE|[1.01] SELECT"},
	{"DECLARE @a decimal(5,2) = 12345", "22003 numeric field overflow: 12345 does not fit decimal(5, 2)"},
	{"DECLARE @a bit = 'maybe'", `22P02 conversion failed when converting the value "maybe" to a bit`},
	{"DECLARE @a int SET @a += 1 SELECT @a", "DECLARE|SET|[<nil>] SELECT"},
	{"DECLARE @a int = 7 SET @a %= 4 SELECT @a SET @a |= 8 SELECT @a SET @a &= 9 SELECT @a", "DECLARE|SET|[3] SELECT|SET|[11] SELECT|SET|[9] SELECT"},
	{"DECLARE @a int = 7 SET @a -= 2 + 3 SELECT @a", "DECLARE|SET|[2] SELECT"},
	{"DECLARE @a int = 1\nGO\nSELECT @a", "DECLARE, 42704 must declare the scalar variable \"@a\""},
	{"DECLARE @a xml", "0A000 the type xml is not supported in the console"},
	{"DECLARE c CURSOR FOR SELECT 1", "0A000 DECLARE of a cursor is not supported in the console"},
	{"DECLARE @t TABLE (x int)", "0A000 DECLARE ... TABLE is not supported in the console"},
	// PRINT and EXEC.
	{"PRINT", "42601 incorrect syntax near the end: expected an expression"},
	{"PRINT 'a' + NULL", "'' PRINT"},
	{"PRINT N'a', 'b'", "42601 incorrect syntax near ',': expected the end of the statement"},
	{"PRINT CAST('2024-02-29' AS date) PRINT 1.50", "'2024-02-29' PRINT|'1.50' PRINT"},
	{"exec sys.sp_databases", "0A000 EXEC sp_databases is not supported in the console"},
	{"EXECUTE master..xp_fixeddrives", "0A000 EXEC xp_fixeddrives is not supported in the console"},
	{"EXEC sp_executesql N'SELECT 1'", "0A000 EXEC sp_executesql is not supported in the console"},
	// The joined views, and what a group of SQL Server needs and this one does not.
	{"SELECT e.name, t.port FROM sys.database_mirroring_endpoints e JOIN sys.tcp_endpoints t ON e.endpoint_id = t.endpoint_id", "[Hadr_endpoint 1] SELECT"},
	{"SELECT session_id FROM sys.dm_exec_sessions AS s (NOLOCK) WHERE s.session_id > 50", "SELECT"},
	{"SELECT r.last_redone_time FROM sys.dm_hadr_database_replica_states r CROSS JOIN sys.dm_hadr_ag_threads", "[<nil>] [<nil>] SELECT"},
	{"create endpoint [Hadr] as tcp (listener_port=5022) for data_mirroring (role=all)", "'not needed, and nothing was done: every node has its endpoint since coterie init and coterie join; sys.database_mirroring_endpoints shows it' CREATE ENDPOINT"},
	{"CREATE LOGIN [D\\svc] FROM WINDOWS", "'not needed, and nothing was done: nodes authenticate by certificates, and need no logins. For a client: CREATE ROLE name LOGIN PASSWORD '...', in any other database' CREATE LOGIN"},
	{"CREATE CERTIFICATE c FROM FILE = 'c.cer'", "'not needed, and nothing was done: nodes authenticate by certificates of the group's own authority, which coterie init and coterie join make' CREATE CERTIFICATE"},
}

// TestUnusualBatches holds what careless scripts do, part by part.
func TestUnusualBatches(t *testing.T) {
	for _, tt := range unusualBatches {
		s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
		var got []string
		parts, err := batch.Split(tt.text)
		if known := (*ddl.Error)(nil); errors.As(err, &known) {
			got = append(got, known.State+" "+known.Message)
		}
		for _, p := range parts {
			got = append(got, answered(s.Run(t.Context(), p.Text)))
		}
		if strings.Join(got, ", ") != tt.want {
			t.Errorf("%s\n got %s\nwant %s", tt.text, strings.Join(got, ", "), tt.want)
		}
	}
}
