package posture

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/unixuser"
	"github.com/coteriedb/coterie/internal/postgres/session"
)

// question asks the server for names, and says what they mean.
type question struct {
	query string // returns one column of text
	each  bool   // is asked in every database
	what  string // before the names
	good  string // without any
	why   string
	run   string
}

var questions = []question{
	{
		query: "SELECT rolname FROM pg_roles WHERE rolsuper AND rolcanlogin AND EXISTS (SELECT 1 FROM pg_authid a WHERE a.oid = pg_roles.oid AND a.rolpassword IS NOT NULL) ORDER BY 1",
		what:  "superusers with a password", good: "no superuser has a password",
		why: "where a rule for clients lets it in, a guessed password is the whole database, and by its programs the node", run: "ALTER ROLE … PASSWORD NULL, or reject them in the rules of hba; administrators use the private socket",
	},
	{
		query: `SELECT r.rolname FROM pg_roles r WHERE NOT r.rolsuper AND EXISTS (SELECT 1 FROM pg_roles p WHERE p.rolname IN
('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program') AND p.oid <> r.oid AND pg_has_role(r.oid, p.oid, 'MEMBER')) ORDER BY 1`,
		what: "roles that may read or write the server's files, or run programs as its user", good: "no role but superusers may use the server's files and programs",
		why: "the node runs as that user: they reach its keys and its management socket, and with them the group", run: "REVOKE pg_read_server_files, pg_write_server_files, pg_execute_server_program FROM …",
	},
	{
		query: "SELECT rolname FROM pg_roles WHERE rolreplication AND NOT rolsuper ORDER BY 1",
		what:  "roles with REPLICATION", good: "no role but superusers has REPLICATION",
		why: "they may drop or advance the slots cot_* of the group, which makes a secondary need a new copy; a rule for replication lets them read everything", run: "ALTER ROLE … NOREPLICATION for those that need it not",
	},
	{
		query: `SELECT r.rolname FROM pg_roles r WHERE NOT r.rolsuper AND (r.rolcreaterole AND current_setting('server_version_num')::int < 160000 OR EXISTS (SELECT 1 FROM pg_auth_members m
JOIN pg_roles g ON g.oid = m.roleid WHERE g.rolname IN ('coterie_viewer', 'coterie_operator', 'coterie_admin') AND m.admin_option AND pg_has_role(r.oid, m.member, 'MEMBER'))) ORDER BY 1`,
		what: "roles that may grant themselves the roles of the console, and before PostgreSQL 16 every role but superusers", good: "only superusers grant the roles of the console",
		why: "an administrator of the console makes join tokens, and with one a machine has the group's data", run: "ALTER ROLE … NOCREATEROLE; REVOKE ADMIN OPTION FOR coterie_admin FROM …",
	},
	{
		query: "SELECT rolname FROM pg_authid WHERE rolpassword LIKE 'md5%' ORDER BY 1",
		what:  "roles with an MD5 password", good: "no password is kept as MD5",
		why: "the stored hash suffices for a login", run: "set password_encryption to scram-sha-256, and their passwords anew",
	},
	{
		query: `SELECT current_database() || '.' || lanname FROM pg_language l WHERE NOT lanpltrusted AND lanname NOT IN ('internal', 'c')
AND EXISTS (SELECT 1 FROM pg_proc p WHERE p.prolang = l.oid AND p.proname NOT LIKE '%\_handler' AND p.proname NOT LIKE '%\_validator') ORDER BY 1`,
		each: true, what: "functions in untrusted languages", good: "no function is in an untrusted language",
		why: "whoever may call such a function runs code as the node's user", run: "see \\df in these databases; REVOKE EXECUTE … FROM PUBLIC",
	},
	{
		query: `SELECT current_database() || '.' || srvname || ' (' || usename || ')' FROM pg_user_mappings
WHERE umoptions::text ~* 'password_required=(false|off|0)' ORDER BY 1`,
		each: true, what: "user mappings with password_required=false", good: "no user mapping does without a password",
		why: "by the server's socket, which trusts its user, they lead to any role", run: "DROP USER MAPPING, or require a password",
	},
	{
		query: "SELECT current_database() || '.file_fdw' FROM pg_extension WHERE extname = 'file_fdw'",
		each:  true, what: "the extension file_fdw", good: "no database has file_fdw",
		why: "its tables read the server's files for everybody who may read them", run: "DROP EXTENSION file_fdw, or look through its tables",
	},
}

// findRoles returns the findings about roles, languages and extensions, by the private socket of the server.
func findRoles(ctx context.Context, l config.Layout, superuser string) ([]check.Finding, error) {
	names, err := ask(ctx, l, superuser, "postgres", "SELECT datname FROM pg_database WHERE datallowconn ORDER BY 1")
	if err != nil {
		return nil, err
	}
	var out []check.Finding
	for _, q := range questions {
		in := []string{"postgres"}
		if q.each {
			in = names
		}
		var found []string
		for _, database := range in {
			some, err := ask(ctx, l, superuser, database, q.query)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", database, err)
			}
			found = append(found, some...)
		}
		out = append(out, q.judge(found))
	}
	return out, nil
}

// listed is the number of names that a finding lists at most.
const listed = 10

func (q question) judge(found []string) check.Finding {
	if len(found) == 0 {
		return ok("%s", q.good)
	}
	found = slices.Clone(found)
	more := ""
	if len(found) > listed {
		more = fmt.Sprintf(", and %d more", len(found)-listed)
		found = found[:listed]
	}
	return check.Finding{Level: check.Warning, What: fmt.Sprintf("%s: %s%s", q.what, strings.Join(found, ", "), more), Why: q.why, Run: q.run}
}

// ask returns the one column of a query's answer.
func ask(ctx context.Context, l config.Layout, user, database, query string) ([]string, error) {
	cfg, err := pgx.ParseConfig("port=5432 sslmode=disable connect_timeout=5")
	if err != nil {
		return nil, err
	}
	cfg.Host, cfg.User, cfg.Database = l.Sockets(), user, database
	cfg.RuntimeParams = params()
	if os.Getuid() == 0 {
		cfg.DialFunc = func(_ context.Context, _, address string) (net.Conn, error) { return unixuser.Dial(address, l.Owner()) }
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// params are the settings of a look. They override those of a database, by which its owner could hide something.
func params() map[string]string {
	p := session.Server{}.Params()
	maps.Copy(p, map[string]string{"application_name": "coterie check", "statement_timeout": "10s", "default_transaction_read_only": "on"})
	return p
}
