package standin

import (
	"testing"
)

// TestStatements holds which statements are known, and who answers them.
func TestStatements(t *testing.T) {
	const here, primary, nobody = "here", "primary", "nobody"
	for statement, want := range map[string]string{
		"set search_path = 'pg_catalog'":                                                 here,
		"set client_encoding = 'UTF8'":                                                   here,
		"set application_name = 'pgBackRest [backup]'":                                   here,
		"set max_parallel_workers_per_gather = 0":                                        here,
		"select (extract(epoch from clock_timestamp()) * 1000)::bigint":                  here,
		"select oid::oid, spcname::text from pg_catalog.pg_tablespace":                   here,
		"select oid::oid, datname::text, datlastsysoid::oid from pg_catalog.pg_database": here,
		"select (select setting from pg_catalog.pg_settings where name = 'server_version_num')::int4, (select setting from pg_catalog.pg_settings where name = 'data_directory')::text": here,
		"select pg_catalog.pg_is_in_recovery()":                                           primary,
		"select pg_catalog.pg_try_advisory_lock(12340078987004321)::bool":                 primary,
		"select pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn())::text": primary,
		"select pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn())::text":        primary,
		"select pg_catalog.pg_create_restore_point('pgBackRest Archive Check')::text":     primary,
		"select pg_catalog.pg_walfile_name(pg_catalog.pg_switch_wal())::text":             primary,
		"select lsn::text as lsn,\n       pg_catalog.pg_walfile_name(lsn)::text as wal_segment_name\n  from pg_catalog.pg_backup_start('pgBackRest backup started at ' || current_timestamp, true) as lsn":                                        primary,
		"select lsn::text as lsn,\n       pg_catalog.pg_walfile_name(lsn)::text as wal_segment_name\n  from pg_catalog.pg_start_backup('pgBackRest backup started at ' || current_timestamp, true, false) as lsn":                                 primary,
		"select lsn::text as lsn,\n       pg_catalog.pg_walfile_name(lsn)::text as wal_segment_name,\n       labelfile::text as backuplabel_file,\n       spcmapfile::text as tablespacemap_file\n  from pg_catalog.pg_backup_stop(false)":        primary,
		"select lsn::text as lsn,\n       pg_catalog.pg_walfile_name(lsn)::text as wal_segment_name,\n       labelfile::text as backuplabel_file,\n       spcmapfile::text as tablespacemap_file\n  from pg_catalog.pg_stop_backup(false, false)": primary,
		"checkpoint": nobody,
		"select pg_catalog.pg_is_in_recovery(); drop table x":             nobody,
		"set search_path = 'pg_catalog'; drop table x":                    nobody,
		"select pg_catalog.pg_promote()":                                  nobody,
		"select oid::oid, spcname::text from pg_catalog.pg_tablespace, x": nobody,
		"": nobody,
	} {
		got := nobody
		if r := ruleFor(statement); r != nil && r.do == nil {
			got = here
		} else if r != nil {
			got = primary
		}
		if got != want {
			t.Errorf("%q is answered by %s, want %s", statement, got, want)
		}
	}
}
