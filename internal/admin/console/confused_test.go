package console

import (
	"errors"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// confused are statements of administrators who take the console for PostgreSQL, for SQL Server or for a shell, or who
// mistype, with what they are told: the SQLSTATE, what is wrong, and what to do.
var confused = []struct{ text, state, says, run string }{
	{"CREATE DATABASE orders", "0A000", "CREATE is not a statement of the console", "ADD DATABASE"},
	{"CREATE TABLE t (n int)", "0A000", "CREATE is not a statement of the console", "connect to another database"},
	{"CREATE ROLE app LOGIN", "0A000", "CREATE is not a statement of the console", "connect to any other database"},
	{"ALTER USER app PASSWORD 'x'", "0A000", "ALTER is not a statement of the console", "connect to any other database"},
	{"ALTER SYSTEM SET work_mem = '64MB'", "0A000", "ALTER is not a statement of the console", "coterie settings set"},
	{"GRANT coterie_viewer TO app", "0A000", "GRANT is not a statement of the console", "in any other database"},
	{"INSERT INTO t VALUES (1)", "0A000", "INSERT is not a statement of the console", "connect to another database"},
	{"UPDATE coterie.options SET value = 1", "0A000", "UPDATE is not a statement of the console", "availability-group statements"},
	{"COPY t FROM stdin", "0A000", "COPY is not a statement of the console", "connect to another database"},
	{"SHOW max_connections", "42704", "unrecognized configuration parameter", "coterie.settings"},
	{"EXPLAIN SELECT 1", "0A000", "EXPLAIN is not a statement of the console", "EXPLAIN FAILOVER"},
	{"SELECT * FROM public.orders", "42P01", "no such table: public.orders", "the data is in other databases"},
	{"SELECT * FROM pg_stat_replication", "42P01", "no such table: pg_stat_replication", "coterie.replicas"},
	{"SELECT * FROM pg_catalog.pg_replication_slots", "42P01", "no such table", "any other database"},
	{"SELECT * FROM coterie.replica", "42P01", "no such table: coterie.replica", "perhaps coterie.replicas"},
	{"SELECT * FROM sys.dm_hadr_availibility_replica_states", "42P01", "no such table", "perhaps sys.dm_hadr_availability_replica_states"},
	{"SELECT repliac_server_name FROM sys.availability_replicas", "42703", "no such column: repliac_server_name", "perhaps availability_replicas.replica_server_name"},
	{"SELECT name FROM coterie.replicas WHERE name = \"n1\"", "42703", "no such column: n1", "single quotes for texts"},
	{"SELECT pg_promote()", "0A000", "PG_PROMOTE is not supported", "coterie failover"},
	{"SELECT pg_reload_conf()", "0A000", "PG_RELOAD_CONF is not supported", "coterie settings set"},
	{"SELECT pg_terminate_backend(5)", "0A000", "PG_TERMINATE_BACKEND is not supported", "coterie.sessions has the pids"},
	{"SELECT now() - interval '5 minutes'", "0A000", "INTERVAL is not supported", "DATEADD"},
	{"failover", "0A000", "FAILOVER is not a statement of the console", "coterie failover --to NAME"},
	{"status", "0A000", "STATUS is not a statement of the console", "coterie.replicas"},
	{"help", "0A000", "HELP is not a statement of the console", "docs/language.md"},
	{"quit", "0A000", "QUIT is not a statement of the console", "\\q"},
	{"ALTER AVALABILITY GROUP shop FAILOVER", "42601", "incorrect syntax near 'AVALABILITY'", "perhaps ALTER AVAILABILITY GROUP"},
	{"DROP AVAILABILITYY GROUP shop", "42601", "incorrect syntax near 'AVAILABILITYY'", "perhaps DROP AVAILABILITY GROUP"},
	{"DECLARE @ag sysname = N'shop'; ALTER AVAILABILITY GROUP @ag FAILOVER", "0A000", "the variable @ag is not taken", "write the name itself"},
	{"ALTER AVAILABILITY GROUP shop MODIFY REPLICA ON @r WITH (BACKUP_PRIORITY = 20)", "0A000", "the variable @r is not taken", "write the name itself"},
	{"KILL 53", "0A000", "KILL is not a statement of the console", "pg_terminate_backend"},
	{"ALTER AVAILABILITY GROUP other FAILOVER", "42704", "cannot alter the availability group N'other'", "[shop]"},
	{"ALTER AVAILABILITY GROUP shop FORCE_FAILOVER", "42601", "expected SET", "FORCE_FAILOVER_ALLOW_DATA_LOSS"},
	{"ALTER AVAILABILITY GROUP 'shop' FAILOVER", "42601", "incorrect syntax near N'shop'", "expected the group's name"},
	{"ALTER AVAILABILITY GROUP shop ADD REPLICA ON 'd' WITH (ENDPOINT_URL = 'tcp://d:5022')", "42704", "no node N'd' has joined", "coterie join TOKEN --name d"},
	{"ALTER AVAILABILITY GROUP shop MODIFY REPLICA ON 'b' WITH (AVAILABILITY_MODE = ASYNC)", "42601", "incorrect syntax near 'ASYNC'", "ASYNCHRONOUS_COMMIT"},
	{"ALTER AVAILABILITY GROUP shop MODIFY REPLICA ON 'b' WITH BACKUP_PRIORITY = 20", "42601", "near 'BACKUP_PRIORITY': expected '('", "WITH (OPTION = VALUE)"},
	{"ALTER AVAILABILITY GROUP shop MODIFY REPLICA 'b' WITH (BACKUP_PRIORITY = 20)", "42601", "incorrect syntax near N'b'", "expected ON"},
	{"ALTER AVAILABILITY GROUP shop SET (FAILURE_CONDITION_LEVEL = 9)", "22023", "out of range", "from 1 to 5"},
	{"ALTER AVAILABILITY GROUP shop REMOVE REPLICA ON 'a'", "55000", "it is the primary", "fail over first"},
	{"ALTER AVAILABILITY GROUP shop SET (ROLE = SECONDARY)", "0A000", "it would leave the group without a primary", "FAILOVER"},
	{"ALTER DATABASE nosuch SET HADR SUSPEND", "42704", "database N'nosuch' is not in availability group", "needs no database"},
	{"SELECT 'it's'", "42601", "unclosed quotation mark", "expected '"},
	{"PRINT 'a', 'b'", "42601", "incorrect syntax near ','", "expected the end of the statement"},
	{"SET @x = 1, 2", "42601", "incorrect syntax near ','", "expected the end of the statement"},
	{"RESTORE DATABASE x WITH NORECOVERY", "0A000", "RESTORE is not a statement of the console", "coterie restore"},
	{"SELECT * FROM msdb.dbo.backupset", "0A000", "the database msdb", "connect to another one"},
}

// TestConfusedStatements holds that each says what is wrong and what to do, and changes nothing.
func TestConfusedStatements(t *testing.T) {
	for _, tt := range confused {
		w := newWorld(t)
		_, err := NewSession(w, Principal{User: "me", May: ddl.MayAdminister}).Run(t.Context(), tt.text)
		var known *Error
		if !errors.As(err, &known) || known.State != tt.state || !strings.Contains(known.Message, tt.says) || !strings.Contains(known.Message+known.Hint, tt.run) {
			t.Errorf("%s: %+v, want %s %s, %s", tt.text, err, tt.state, tt.says, tt.run)
		}
		if len(w.ran) > 0 {
			t.Errorf("%s: %s was done", tt.text, w.ran)
		}
	}
}
