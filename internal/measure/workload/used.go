package workload

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// LooksUsed returns why the server at dsn may be in use; empty: no sign of it. A benchmark that takes all of a server's
// processors slows all of its databases down, so clients of the others count, too. Tables can only be seen in this one.
func LooksUsed(ctx context.Context, dsn string) (string, error) {
	conn, err := session.Open(ctx, dsn, appName)
	if err != nil {
		return "", err
	}
	defer closeConn(conn)
	var reasons []string
	for _, look := range []func(context.Context, *pgx.Conn) (string, error){othersConnected, othersTables} {
		why, err := look(ctx, conn)
		if err != nil {
			return "", fmt.Errorf("look at the target: %w", err)
		}
		if why != "" {
			reasons = append(reasons, why)
		}
	}
	return strings.Join(reasons, ", and "), nil
}

// othersConnected counts clients of the server that are not of this program. A user without the right to see what
// others do (pg_read_all_stats) is not shown of what kind their sessions are, but it sees their users and databases.
func othersConnected(ctx context.Context, conn *pgx.Conn) (string, error) {
	var clients, elsewhere int
	var example string
	err := conn.QueryRow(ctx, `select count(*), count(*) filter (where datname is distinct from current_database()),
		coalesce(min(format('%s of %s in %s', coalesce(nullif(application_name, ''), 'a client'), usename, datname)), '')
		from pg_stat_activity where coalesce(backend_type, 'client backend') = 'client backend' and datname is not null and usename is not null
		and pid <> pg_backend_pid()
		and coalesce(application_name, '') not like 'coterie%' and application_name is distinct from $1`, appName).Scan(&clients, &elsewhere, &example)
	if err != nil || clients == 0 {
		return "", err
	}
	where := "it"
	if elsewhere == clients {
		where = "other databases of its server"
	} else if elsewhere > 0 {
		where = "its server"
	}
	return fmt.Sprintf("others are connected to %s: %d (%s)", where, clients, example), nil
}

// othersTables looks at sizes: the server publishes its counts late, and forgets them in a failover.
func othersTables(ctx context.Context, conn *pgx.Conn) (string, error) {
	var tables int
	var example string
	err := conn.QueryRow(ctx, `select count(*), coalesce(min(format('%I.%I', schemaname, relname)), '') from pg_stat_user_tables
		where schemaname not in ('coterie_bench', 'tpcc', 'coterie_ledger') and pg_relation_size(relid) > 0`).Scan(&tables, &example)
	if err != nil || tables == 0 {
		return "", err
	}
	return fmt.Sprintf("tables in it hold rows and are not ours: %d (%s)", tables, example), nil
}
