package bluegreen

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// rowsOf is a catalog as the fingerprint sees it: each row by the number of the transaction that wrote it last.
func rowsOf(catalog, id, where string) string {
	return fmt.Sprintf("SELECT '%s' AS k, (%s)::text AS id, x.xmin::text AS v FROM %s x %s", catalog, id, catalog, where)
}

// permanent leaves out rows of a catalog whose relation is temporary. Tables that are only emptied stay the same.
func permanent(column string) string {
	return fmt.Sprintf(`JOIN pg_class c ON c.oid = x.%s JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname !~ '^pg_(toast_)?temp' WHERE c.oid >= 16384`, column)
}

// rightsOf is the rights to what every cluster has.
func rightsOf(catalog, id, acl string) string {
	return fmt.Sprintf("SELECT '%[1]s', x.%[2]s::text, x.%[3]s::text FROM %[1]s x WHERE x.%[2]s < 16384 AND x.%[3]s IS NOT NULL", catalog, id, acl)
}

// definitions has the rows of the catalogs of a database that a person's change of a definition changes. pg_class has
// numbers that are no definitions. The publication for the way back counts: without it rows would be left out.
var definitions = strings.Join([]string{
	`SELECT 'pg_class' AS k, c.oid::text AS id, concat_ws(' ', c.relnamespace, c.relname, c.relowner, c.relkind, c.relpersistence, c.relreplident, c.relispartition, c.relrowsecurity, c.reltablespace, c.relam, c.reloftype,
		c.relforcerowsecurity, c.reloptions::text, c.relacl::text, pg_get_expr(c.relpartbound, c.oid)) AS v FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.oid >= 16384 AND n.nspname !~ '^pg_(toast|temp)'`,
	rowsOf("pg_attribute", "x.attrelid::text || ' ' || x.attnum", permanent("attrelid")),
	rowsOf("pg_attrdef", "x.oid", permanent("adrelid")),
	rowsOf("pg_constraint", "x.oid", permanent("conrelid")),
	rowsOf("pg_constraint", "x.oid", "WHERE x.contypid <> 0 AND x.oid >= 16384"),
	rowsOf("pg_trigger", "x.oid", permanent("tgrelid")),
	rowsOf("pg_rewrite", "x.oid", permanent("ev_class")),
	rowsOf("pg_policy", "x.oid", permanent("polrelid")),
	rowsOf("pg_inherits", "x.inhrelid", permanent("inhrelid")),
	rowsOf("pg_partitioned_table", "x.partrelid", permanent("partrelid")),
	rowsOf("pg_sequence", "x.seqrelid", permanent("seqrelid")),
	`SELECT 'pg_index', x.indexrelid::text, pg_get_indexdef(x.indexrelid) || x.indisreplident || x.indisvalid FROM pg_index x ` + permanent("indrelid"),
	rowsOf("pg_type", "x.oid", "JOIN pg_namespace n ON n.oid = x.typnamespace AND n.nspname !~ '^pg_(toast_)?temp' WHERE x.oid >= 16384 AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = x.typrelid AND c.relkind <> 'c')"),
	rowsOf("pg_enum", "x.oid", ""), rowsOf("pg_range", "x.rngtypid", "WHERE x.rngtypid >= 16384"),
	rowsOf("pg_proc", "x.oid", "JOIN pg_namespace n ON n.oid = x.pronamespace AND n.nspname !~ '^pg_temp' WHERE x.oid >= 16384"),
	rowsOf("pg_namespace", "x.oid", "WHERE x.oid >= 2200 AND x.nspname !~ '^pg_(toast_)?temp'"),
	rowsOf("pg_extension", "x.oid", ""), rowsOf("pg_cast", "x.oid", "WHERE x.oid >= 16384"), rowsOf("pg_operator", "x.oid", "WHERE x.oid >= 16384"),
	rowsOf("pg_opclass", "x.oid", "WHERE x.oid >= 16384"), rowsOf("pg_collation", "x.oid", "WHERE x.oid >= 16384"), rowsOf("pg_conversion", "x.oid", "WHERE x.oid >= 16384"),
	rowsOf("pg_aggregate", "x.aggfnoid::oid", "WHERE x.aggfnoid::oid >= 16384"), rowsOf("pg_language", "x.oid", "WHERE x.oid >= 16384"),
	rowsOf("pg_statistic_ext", "x.oid", ""), rowsOf("pg_event_trigger", "x.oid", ""), rowsOf("pg_default_acl", "x.oid", ""),
	rowsOf("pg_foreign_server", "x.oid", ""), rowsOf("pg_foreign_data_wrapper", "x.oid", ""), rowsOf("pg_user_mapping", "x.oid", ""), rowsOf("pg_foreign_table", "x.ftrelid", ""),
	rowsOf("pg_ts_config", "x.oid", "WHERE x.oid >= 16384"), rowsOf("pg_ts_dict", "x.oid", "WHERE x.oid >= 16384"), rowsOf("pg_transform", "x.oid", ""),
	rowsOf("pg_publication", "x.oid", "WHERE x.pubname <> '"+forth+"'"), rowsOf("pg_publication_rel", "x.oid", "JOIN pg_publication p ON p.oid = x.prpubid WHERE p.pubname <> '"+forth+"'"),
	rowsOf("pg_subscription", "x.oid", "WHERE x.subname NOT IN ('"+forth+"', '"+back+"')"),
	rowsOf("pg_am", "x.oid", "WHERE x.oid >= 16384"), rowsOf("pg_opfamily", "x.oid", "WHERE x.oid >= 16384"), rowsOf("pg_amop", "x.oid", "WHERE x.oid >= 16384"), rowsOf("pg_amproc", "x.oid", "WHERE x.oid >= 16384"),
	rowsOf("pg_ts_parser", "x.oid", "WHERE x.oid >= 16384"), rowsOf("pg_ts_template", "x.oid", "WHERE x.oid >= 16384"),
	rowsOf("pg_ts_config_map", "x.mapcfg::oid::text || ' ' || x.maptokentype || ' ' || x.mapseqno", "WHERE x.mapcfg::oid >= 16384"),
	rightsOf("pg_class", "oid", "relacl"), rightsOf("pg_attribute", "attrelid", "attacl"), rightsOf("pg_proc", "oid", "proacl"), rightsOf("pg_type", "oid", "typacl"), rightsOf("pg_language", "oid", "lanacl"),
	`SELECT 'pg_depend', concat_ws(' ', x.classid, x.objid, x.objsubid, x.refobjid), x.deptype::text FROM pg_depend x WHERE x.objid >= 16384 AND x.deptype IN ('e', 'x')`,
	rowsOf("pg_description", "x.classoid::text || ' ' || x.objoid || ' ' || x.objsubid", "WHERE x.objoid >= 16384"), rowsOf("pg_seclabel", "x.objoid", ""),
}, " UNION ALL ")

// clusterwide is definitions of what is the whole cluster's.
var clusterwide = strings.Join([]string{
	`SELECT 'pg_database' AS k, oid::text AS id, concat_ws(' ', datname, datdba, datallowconn, datistemplate, datconnlimit, dattablespace, datacl::text) AS v FROM pg_database`,
	rowsOf("pg_authid", "x.oid", "WHERE x.oid >= 16384 OR x.oid = 10"), rowsOf("pg_auth_members", "x.roleid::text || ' ' || x.member", ""),
	rowsOf("pg_db_role_setting", "x.setdatabase::text || ' ' || x.setrole", ""), rowsOf("pg_tablespace", "x.oid", ""), rowsOf("pg_shseclabel", "x.objoid", ""), rowsOf("pg_shdescription", "x.objoid", "WHERE x.objoid >= 16384"),
}, " UNION ALL ")

// since15 adds a catalog to definitions that PostgreSQL has from version 15 on.
func since15(definitions, catalog string) string {
	return definitions + " UNION ALL " + rowsOf(catalog, "x.oid", "")
}

// ErrChanged means that definitions on blue are others than green has.
var ErrChanged = errors.New("the definitions of tables, roles or other objects have changed since the copy began")

// ErrOtherCatalogs means that a fingerprint was taken by a version of Coterie that looks at other catalogs.
var ErrOtherCatalogs = errors.New("the definitions were noted by a version of Coterie that compares other catalogs, so it cannot be told whether they have changed")

// Changed returns ErrChanged if the definitions are others now than when the fingerprint then was taken, and
// ErrOtherCatalogs if the two fingerprints cannot be compared.
func Changed(then, now string) error {
	looksAt, _, _ := strings.Cut(now, ".")
	switch {
	case then == now:
		return nil
	case !strings.HasPrefix(then, looksAt+"."):
		return ErrOtherCatalogs
	}
	return ErrChanged
}

// Fingerprint is a number of the definitions on blue, of the whole cluster and of databases, to be compared by Changed.
// Before it stands a number of the catalogs that it looks at.
func (p *Pair) Fingerprint(ctx context.Context, databases []string) (string, error) {
	return fingerprint(ctx, p.Blue, databases)
}

func fingerprint(ctx context.Context, open opener, databases []string) (string, error) {
	looksAt := sha256.Sum256([]byte(clusterwide + definitions))
	all := []string{hex.EncodeToString(looksAt[:8])}
	take := func(sql, later string) func(*pgx.Conn) error {
		return func(c *pgx.Conn) error {
			var version int
			if err := c.QueryRow(ctx, "SELECT current_setting('server_version_num')::int / 10000").Scan(&version); err != nil {
				return err
			}
			if version >= 15 {
				sql = since15(sql, later)
			}
			var sum string
			err := c.QueryRow(ctx, "SELECT coalesce(md5(string_agg(md5(k || ' ' || id || ' ' || coalesce(v, '')), '' ORDER BY k, id, v)), '') FROM ("+sql+") a").Scan(&sum)
			all = append(all, sum)
			return err
		}
	}
	if err := in(ctx, open, "", take(clusterwide, "pg_parameter_acl")); err != nil {
		return "", fmt.Errorf("look at the definitions: %w", err)
	}
	for _, d := range databases {
		if err := in(ctx, open, d, take(definitions, "pg_publication_namespace")); err != nil {
			return "", fmt.Errorf("look at the definitions: %w", err)
		}
	}
	return strings.Join(all, "."), nil
}
