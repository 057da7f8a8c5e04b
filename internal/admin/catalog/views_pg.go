package catalog

import (
	"database/sql/driver"
	"slices"
	"strings"
)

// views are all tables, in the order in which they are listed. The oid of each follows from its position.
var views = func() []view {
	all := slices.Concat(sysViews, copyViews, counterViews, instanceViews, emptyViews, ownViews, postgresViews)
	for i := range all {
		all[i].oid = int64(16384 + i)
	}
	return all
}()

// schemas are the attached databases of the engine.
var schemas = []string{"sys", "coterie", "pg_catalog", "information_schema"}

func schemaOID(schema string) int64 { return int64(2200 + slices.Index(schemas, schema)) }

// postgresViews are the parts of PostgreSQL's catalog that tools query at their start, and psql for \d.
var postgresViews []view

func init() { // they list all views, including themselves
	postgresViews = slices.Concat(catalogTables(), emptyTables(), otherTables())
	for i := range postgresViews {
		postgresViews[i].oid = int64(16384 + len(views) + i)
	}
	views = append(views, postgresViews...)
	explain(views, parseMeanings(columnText))
}

func catalogTables() []view {
	return []view{
		{
			schema: "coterie", name: "columns", about: "Every column of these views, with its meaning.",
			columns: cols("view_name t, column_name t, type t, meaning t, absent_because t"), rows: columnRows,
		},
		table("pg_catalog", "pg_namespace", "oid o, nspname t, nspowner o, nspacl t", func() (out [][]any) {
			for _, s := range schemas {
				out = append(out, []any{schemaOID(s), s, int64(10), nil})
			}
			return out
		}),
		table("pg_catalog", "pg_class", "oid o, relname t, relnamespace o, reltype o, reloftype o, relowner o, relam o, relfilenode o, reltablespace o, relpages i4, "+
			"reltuples f, relallvisible i4, reltoastrelid o, relhasindex b, relisshared b, relpersistence t, relkind t, relnatts i4, relchecks i4, relhasrules b, "+
			"relhastriggers b, relhassubclass b, relrowsecurity b, relforcerowsecurity b, relispopulated b, relreplident t, relispartition b, reloptions t, relacl t, "+
			"relpartbound t", classRows),
		table("pg_catalog", "pg_attribute", "attrelid o, attname t, atttypid o, attstattarget i4, attlen i4, attnum i4, attndims i4, atttypmod i4, attnotnull b, "+
			"atthasdef b, attidentity t, attgenerated t, attisdropped b, attcollation o, attstorage t, attcompression t, attacl t, attoptions t, attfdwoptions t, "+
			"atthasmissing b, attislocal b, attinhcount i4", attributeRows),
		table("pg_catalog", "pg_type", "oid o, typname t, typnamespace o, typlen i4, typtype t, typcategory t, typrelid o, typelem o, typarray o, typbasetype o, "+
			"typtypmod i4, typnotnull b, typdelim t, typinput t, typoutput t, typreceive t, typcollation o, typdefault t, typdefaultbin t, typndims i4", typeRows),
		table("pg_catalog", "pg_description", "objoid o, classoid o, objsubid i4, description t", descriptionRows),
		table("pg_catalog", "pg_database", "oid o, datname t, datdba o, encoding i4, datlocprovider t, datistemplate b, datallowconn b, datconnlimit i4, dattablespace o, "+
			"datcollate t, datctype t, daticulocale t, datacl t", func() [][]any {
			return [][]any{{int64(1), "coterie", int64(10), int64(6), "c", int64(0), int64(1), int64(-1), int64(1663), "C", "C", nil, nil}}
		}),
	}
}

func emptyTables() []view {
	return []view{
		empty("pg_index", "indexrelid o, indrelid o, indnatts i4, indisunique b, indisprimary b, indisexclusion b, indimmediate b, indisclustered b, indisvalid b, "+
			"indisreplident b, indkey t, indexprs t, indpred t, indoption t, indcollation t, indclass t"),
		empty("pg_attrdef", "oid o, adrelid o, adnum i4, adbin t"),
		empty("pg_shdescription", "objoid o, classoid o, description t"),
		empty("pg_depend", "classid o, objid o, objsubid i4, refclassid o, refobjid o, refobjsubid i4, deptype t"),
		empty("pg_constraint", "oid o, conname t, connamespace o, contype t, condeferrable b, condeferred b, convalidated b, conrelid o, contypid o, conindid o, "+
			"conparentid o, confrelid o, confupdtype t, confdeltype t, confmatchtype t, conkey t, confkey t"),
		empty("pg_inherits", "inhrelid o, inhparent o, inhseqno i4, inhdetachpending b"),
		empty("pg_collation", "oid o, collname t, collnamespace o"),
		empty("pg_am", "oid o, amname t, amtype t"),
		empty("pg_extension", "oid o, extname t, extowner o, extnamespace o, extrelocatable b, extversion t"),
		empty("pg_trigger", "oid o, tgrelid o, tgname t, tgenabled t, tgisinternal b, tgparentid o, tgconstraint o, tgdeferrable b, tginitdeferred b"),
		empty("pg_policy", "oid o, polname t, polrelid o, polcmd t, polpermissive b, polroles t, polqual t, polwithcheck t"),
		empty("pg_statistic_ext", "oid o, stxrelid o, stxname t, stxnamespace o, stxkind t, stxstattarget i4"),
		empty("pg_publication", "oid o, pubname t, puballtables b"),
		empty("pg_publication_rel", "oid o, prpubid o, prrelid o, prqual t, prattrs t"),
		empty("pg_publication_namespace", "oid o, pnpubid o, pnnspid o"),
		empty("pg_proc", "oid o, proname t, pronamespace o, proowner o, prokind t, prorettype o, proargtypes t, pronargs i4"),
		empty("pg_enum", "oid o, enumtypid o, enumsortorder f, enumlabel t"),
		empty("pg_range", "rngtypid o, rngsubtype o"),
		empty("pg_tablespace", "oid o, spcname t"),
		empty("pg_foreign_table", "ftrelid o, ftserver o"),
		empty("pg_foreign_server", "oid o, srvname t"),
		empty("pg_stat_activity", "pid i4, datname t, usename t, state t, query t"),
		empty("pg_locks", "pid i4, locktype t"),
	}
}

func otherTables() []view {
	return []view{
		table("pg_catalog", "pg_roles", "oid o, rolname t, rolsuper b, rolinherit b, rolcreaterole b, rolcreatedb b, rolcanlogin b, rolconnlimit i4, rolvaliduntil ts, "+
			"rolreplication b, rolbypassrls b", func() [][]any {
			return [][]any{{int64(10), "coterie", int64(1), int64(1), int64(0), int64(0), int64(0), int64(-1), nil, int64(0), int64(0)}}
		}),
		table("pg_catalog", "pg_settings", "name t, setting t, unit t, category t, short_desc t, context t, vartype t, source t", func() [][]any {
			return [][]any{{"standard_conforming_strings", "on", nil, nil, nil, nil, nil, nil}}
		}),
		table("information_schema", "schemata", "catalog_name t, schema_name t, schema_owner t", func() (out [][]any) {
			for _, s := range schemas {
				out = append(out, []any{"coterie", s, "coterie"})
			}
			return out
		}),
		table("information_schema", "tables", "table_catalog t, table_schema t, table_name t, table_type t, is_insertable_into t", func() (out [][]any) {
			for _, v := range views {
				out = append(out, []any{"coterie", v.schema, v.name, "VIEW", "NO"})
			}
			return out
		}),
		table("information_schema", "columns", "table_catalog t, table_schema t, table_name t, column_name t, ordinal_position i4, column_default t, is_nullable t, "+
			"data_type t, udt_schema t, udt_name t, character_maximum_length i4, numeric_precision i4, numeric_scale i4", func() (out [][]any) {
			for _, v := range views {
				for i, c := range v.columns {
					out = append(out, []any{"coterie", v.schema, v.name, c.name, int64(i + 1), nil, "YES", c.typ.name, "pg_catalog", shortName(c.typ), nil, nil, nil})
				}
			}
			return out
		}),
	}
}

func table(schema, name, spec string, rows func() [][]any) view {
	return view{schema: schema, name: name, columns: cols(spec), rows: func(Facts) [][]any { return rows() }}
}

func empty(name, spec string) view {
	return table("pg_catalog", name, spec, func() [][]any { return nil })
}

func columnRows(Facts) (out [][]any) {
	for _, v := range views {
		for _, c := range v.columns {
			if !v.ours() {
				continue
			}
			row := []any{v.full(), c.name, c.typ.name, c.about(), nil}
			if c.null {
				row[4] = c.meaning
			}
			out = append(out, row)
		}
	}
	return out
}

// descriptionRows returns the comments on our views and their columns as PostgreSQL keeps them: 0 is the view itself.
func descriptionRows() (out [][]any) {
	class, _ := viewNamed("pg_catalog", "pg_class")
	for _, v := range views {
		if !v.ours() {
			continue
		}
		out = append(out, []any{v.oid, class.oid, int64(0), v.about})
		for i, c := range v.columns {
			out = append(out, []any{v.oid, class.oid, int64(i + 1), c.about()})
		}
	}
	return out
}

// description is obj_description and col_description: the comment on a view, or on the column of that number.
func description(a []driver.Value) (driver.Value, error) {
	for _, v := range views {
		if v.oid != integer(a[0]) || !v.ours() {
			continue
		}
		if len(a) < 2 || text(a[1]) == "pg_class" {
			return v.about, nil
		}
		if n := integer(a[1]); n >= 1 && int(n) <= len(v.columns) {
			return v.columns[n-1].about(), nil
		}
	}
	return nil, nil
}

func classRows() [][]any {
	var out [][]any
	for _, v := range views {
		row := []any{
			v.oid, v.name, schemaOID(v.schema), int64(0), int64(0), int64(10), int64(0), int64(0), int64(0), int64(0), float64(0), int64(0), int64(0), int64(0),
			int64(0), "p", "v", int64(len(v.columns)), int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), int64(1), "n", int64(0), nil, nil, nil,
		}
		out = append(out, row)
	}
	return out
}

func attributeRows() [][]any {
	var out [][]any
	for _, v := range views {
		for i, c := range v.columns {
			out = append(out, []any{
				v.oid, c.name, int64(c.typ.oid), int64(-1), int64(c.typ.length), int64(i + 1), int64(0), int64(-1), int64(0), int64(0), "", "", int64(0), int64(0),
				"p", "", nil, nil, nil, int64(0), int64(1), int64(0),
			})
		}
	}
	return out
}

// shortName returns the name of a type in pg_type.
func shortName(t columnType) string {
	return strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(t.declare, "_INT"), "_TEXT"), "_REAL"))
}

func typeRows() [][]any {
	var out [][]any
	for _, t := range columnTypes {
		out = append(out, []any{
			int64(t.oid), shortName(t), schemaOID("pg_catalog"), int64(t.length), "b", "U", int64(0), int64(0), int64(0), int64(0), int64(-1), int64(0), ",",
			shortName(t) + "in", shortName(t) + "out", shortName(t) + "recv", int64(0), nil, nil, int64(0),
		})
	}
	return out
}
