package replay

import (
	"slices"
	"strings"
)

// Outside returns why a database with these extensions may have triggers that act outside of it, or leave something
// there that a rollback does not remove; "" if not. It knows extensions of PostgreSQL and a few others.
func Outside(extensions []string) string {
	for _, e := range extensions {
		if !slices.Contains(inside, e) {
			return "its database has " + e + ", which may act outside of it"
		}
	}
	return ""
}

// inside are extensions whose functions and types act within transactions.
var inside = strings.Fields(`plpgsql amcheck autoinc bloom btree_gin btree_gist citext cube dict_int dict_xsyn earthdistance fuzzystrmatch hstore
	insert_username intagg intarray isn lo ltree moddatetime pageinspect pg_buffercache pg_freespacemap pg_prewarm pg_stat_statements pg_trgm
	pg_visibility pg_walinspect pgcrypto pgrowlocks pgstattuple postgres_fdw refint seg sslinfo tablefunc tcn tsm_system_rows tsm_system_time
	unaccent uuid-ossp xml2 postgis postgis_raster postgis_topology vector pg_partman pg_repack`)
