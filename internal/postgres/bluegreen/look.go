package bluegreen

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Findings are what a look at blue has found.
type Findings struct {
	Obstacles []string
	Notes     []string
}

// most bounds the objects of one kind that are named in one database.
const most = 50

// mine restricts pg_class c with pg_namespace n to what users have made, and leaves out temporary objects.
const mine = `pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname NOT IN ('pg_catalog', 'information_schema')
	AND n.nspname !~ '^pg_(toast|temp)' AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')`

// identified means that UPDATE and DELETE of a table c can be replicated.
const identified = `(c.relreplident = 'f' OR c.relreplident = 'd' AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate)
	OR c.relreplident = 'i' AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident))`

// kind is one kind of object that cannot go along, or of which a person should know.
type kind struct {
	sql  string // its objects, each as what is said of it
	note bool
}

// kinds of a database.
var kinds = []kind{
	{sql: `SELECT format('table %1$s has no primary key and no replica identity, so that its UPDATE and DELETE cannot be replicated: ALTER TABLE %1$s REPLICA IDENTITY FULL, or give it a primary key',
		format('%I.%I', n.nspname, c.relname)) FROM ` + mine + ` AND c.relkind = 'r' AND c.relpersistence = 'p' AND NOT ` + identified},
	{sql: `SELECT format('table %1$s has a generated column in its replica identity, which is not replicated: ALTER TABLE %1$s REPLICA IDENTITY FULL', format('%I.%I', n.nspname, c.relname))
		FROM ` + mine + ` AND c.relkind = 'r' AND c.relpersistence = 'p' AND c.relreplident <> 'f' AND EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
		WHERE i.indrelid = c.oid AND (i.indisprimary AND c.relreplident = 'd' OR i.indisreplident) AND a.attgenerated <> '')`},
	{sql: `SELECT format('table %1$s is unlogged, and its rows are not replicated: ALTER TABLE %1$s SET LOGGED, or drop it', format('%I.%I', n.nspname, c.relname)) FROM ` + mine + ` AND c.relkind = 'r' AND c.relpersistence = 'u'`},
	{sql: `SELECT format('%s large objects, which are not replicated: remove them (lo_unlink, vacuumlo), or upgrade without --blue-green', count(*)) FROM pg_largeobject_metadata HAVING count(*) > 0`},
	{sql: `SELECT format('extension %I keeps rows in tables of its own, which are not replicated: DROP EXTENSION %1$I and make it anew afterwards, or upgrade without --blue-green', extname) FROM pg_extension WHERE cardinality(extconfig) > 0`},
	{sql: `SELECT format('table %s belongs to extension %I, so that its rows are not replicated: DROP EXTENSION %2$I and make it anew afterwards, or upgrade without --blue-green', c.oid::regclass, e.extname)
		FROM pg_depend d JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'r' JOIN pg_extension e ON e.oid = d.refobjid AND cardinality(coalesce(e.extconfig, '{}')) = 0
		WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'`},
	{sql: `SELECT format('trigger %I of %s fires in replication as well, and would change rows twice: ALTER TABLE %2$s ENABLE TRIGGER %1$I for the time of the upgrade', t.tgname, t.tgrelid::regclass)
		FROM pg_trigger t WHERE t.tgenabled IN ('A', 'R') AND NOT t.tgisinternal`},
	{sql: `SELECT format('rule %I of %s acts in replication as well: ALTER TABLE %2$s ENABLE RULE %1$I for the time of the upgrade', r.rulename, r.ev_class::regclass) FROM pg_rewrite r WHERE r.ev_enabled IN ('A', 'R')`},
	{note: true, sql: `SELECT format('materialized view %I.%I is refreshed on the new cluster before the group passes, and may be newer there', n.nspname, c.relname) FROM ` + mine + ` AND c.relkind = 'm'`},
	{note: true, sql: `SELECT format('event trigger %I goes along, and does not fire for what is replicated', evtname) FROM pg_event_trigger`},
	{note: true, sql: `SELECT format('%s sequences get their values when the group passes', count(*)) FROM pg_sequence HAVING count(*) > 0`},
	{note: true, sql: `SELECT format('publication %I goes along; a subscription to it elsewhere has to be made anew', pubname) FROM pg_publication WHERE pubname NOT IN ('` + forth + `', '` + back + `')`},
}

// ofOwners are kinds of a database where the owners of tables write the rows on green.
var ofOwners = []kind{
	{sql: `SELECT format('table %1$s applies row security to its owner, by whom its rows are written on the new cluster: ALTER TABLE %1$s NO FORCE ROW LEVEL SECURITY for the time of the upgrade', format('%I.%I', n.nspname, c.relname))
		FROM ` + mine + ` AND c.relkind = 'r' AND c.relpersistence = 'p' AND c.relrowsecurity AND c.relforcerowsecurity AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = c.relowner AND (r.rolsuper OR r.rolbypassrls))`},
	{sql: `SELECT format('table %1$s may not be written to by its owner, by whom its rows are written on the new cluster: GRANT INSERT, UPDATE, DELETE, TRUNCATE ON %1$s TO %2$I', format('%I.%I', n.nspname, c.relname), pg_get_userbyid(c.relowner))
		FROM ` + mine + ` AND c.relkind = 'r' AND c.relpersistence = 'p' AND NOT (has_table_privilege(c.relowner, c.oid, 'INSERT') AND has_table_privilege(c.relowner, c.oid, 'UPDATE')
		AND has_table_privilege(c.relowner, c.oid, 'DELETE') AND has_table_privilege(c.relowner, c.oid, 'TRUNCATE'))`},
}

// ofSuperuser are kinds of a database where the superuser writes the rows on a cluster. The parameter is which.
var ofSuperuser = []kind{
	{note: true, sql: `SELECT format('the superuser writes the rows of %s tables on the %s cluster, and functions that their owners have made, as in an index or a check, run as the superuser there: PostgreSQL before 16 knows nothing else. Go on only if you trust these owners: %s',
		count(*), $1::text, string_agg(DISTINCT pg_get_userbyid(c.relowner)::text, ', ')) FROM ` + mine + ` AND c.relkind = 'r' AND c.relpersistence = 'p'
		AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = c.relowner AND r.rolsuper) HAVING count(*) > 0`},
}

// writers adds what is to be known of who writes the rows: on green and, on the way back, on blue.
func (f *Findings) writers(ctx context.Context, c *pgx.Conn, p *Pair, where string) error {
	kinds, args := ofOwners, []any(nil)
	if p.Install.Major < ownersWrite {
		kinds, args = ofSuperuser, []any{"new"}
	}
	for _, k := range kinds {
		if err := f.add(ctx, c, k, where, args...); err != nil {
			return err
		}
	}
	var blue int
	if err := c.QueryRow(ctx, "SELECT current_setting('server_version_num')::int / 10000").Scan(&blue); err != nil || blue >= ownersWrite || !p.Keep || p.Install.Major < ownersWrite {
		return err
	}
	for _, k := range ofSuperuser {
		if err := f.add(ctx, c, k, where, "old"); err != nil {
			return err
		}
	}
	return nil
}

// shared are the kinds of the whole cluster. The parameter is the number of databases.
var shared = []kind{
	{sql: `SELECT format('wal_level is %s, and logical replication needs logical: coterie settings set wal_level=logical, then coterie restart --postgres --all', setting)
		FROM pg_settings WHERE name = 'wal_level' AND setting <> 'logical' AND $1 > 0`},
	{sql: `SELECT format('%s is %s, and %s are needed: coterie settings set %1$s=%3$s, then coterie restart --postgres --all', name, setting, used + 3 * $1 + 2)
		FROM pg_settings, (SELECT count(*) AS used FROM pg_replication_slots) s WHERE name IN ('max_replication_slots', 'max_wal_senders') AND setting::int < used + 3 * $1 + 2`},
	{sql: `SELECT format('database %I takes no connections, so that nothing of it could be copied: ALTER DATABASE %1$I ALLOW_CONNECTIONS true, or drop it', datname)
		FROM pg_database WHERE NOT datallowconn AND datname <> 'template0' AND $1 > 0`},
}

// Look looks for what cannot go along, and for what a person should know.
func (p *Pair) Look(ctx context.Context) (f Findings, err error) {
	databases, err := p.Databases(ctx)
	if err != nil {
		return f, err
	}
	err = in(ctx, p.Blue, "", func(c *pgx.Conn) error {
		for _, k := range shared {
			if err := f.add(ctx, c, k, "", len(databases)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return f, fmt.Errorf("look for what cannot go along: %w", err)
	}
	for _, d := range databases {
		err := in(ctx, p.Blue, d, func(c *pgx.Conn) error {
			for _, k := range kinds {
				if err := f.add(ctx, c, k, "database "+d+": "); err != nil {
					return err
				}
			}
			return f.writers(ctx, c, p, "database "+d+": ")
		})
		if err != nil {
			return f, fmt.Errorf("look for what cannot go along: %w", err)
		}
	}
	return f, nil
}

// add adds the objects of a kind.
func (f *Findings) add(ctx context.Context, c *pgx.Conn, k kind, where string, args ...any) error {
	rows, err := c.Query(ctx, k.sql, args...)
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	to := &f.Obstacles
	if k.note {
		to = &f.Notes
	}
	for i, s := range found {
		if i == most {
			*to = append(*to, fmt.Sprintf("%sand %d more of this kind", where, len(found)-most))
			break
		}
		*to = append(*to, where+s)
	}
	return nil
}
