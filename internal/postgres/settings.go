package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Setting is one setting of a running server.
type Setting struct {
	Name    string
	Value   string // with its unit
	Source  string // where the value is from, in the server's words: default, configuration file, command line, …
	Pending bool   // another value waits for a restart
}

// ownSettings are those that differ from node to node by nature, or that the agent changes with the node's role.
var ownSettings = []string{
	"external_pid_file", "cluster_name", "primary_conninfo", "primary_slot_name", "synchronous_standby_names", "max_standby_streaming_delay", "max_standby_archive_delay",
	"hot_standby_feedback", "in_hot_standby", "transaction_read_only", "server_version_num", "shared_memory_size", "shared_memory_size_in_huge_pages", "application_name", "role",
}

// What the server tells nobody but superusers may be secret and is left out, but for the libraries, without which a server does not
// start. Of the collation providers the version is a setting, too: indexes on text depend on it. Then come the settings that
// this session may have set for itself, as the files have them.
const privilegedSettings = `SELECT 'shared_preload_libraries' AS name, current_setting('shared_preload_libraries') AS value, source, pending_restart
    FROM pg_settings WHERE name = 'shared_preload_libraries'
UNION ALL
SELECT 'collation version of libc', max(pg_collation_actual_version(oid)), 'the operating system', false FROM pg_collation WHERE collprovider = 'c'
    HAVING max(pg_collation_actual_version(oid)) IS NOT NULL
UNION ALL
SELECT 'collation version of ICU', pg_collation_actual_version(oid), 'the operating system', false FROM pg_collation WHERE collname = 'und-x-icu'
UNION ALL
SELECT s.name, coalesce(f.setting, s.boot_val, ''), CASE WHEN f.setting IS NULL THEN 'default' ELSE 'configuration file' END, false
    FROM pg_settings s LEFT JOIN (SELECT DISTINCT ON (name) name, setting FROM pg_file_settings WHERE applied ORDER BY name, seqno DESC) f ON f.name = s.name
    WHERE s.source IN ('client', 'session') AND s.name <> ALL ($1)`

const openSettings = `SELECT name, coalesce(current_setting(name, true), ''), source, pending_restart FROM pg_settings
    WHERE source NOT IN ('client', 'session') AND name <> ALL ($1) AND name <> 'shared_preload_libraries'`

// Settings asks the running server for the settings of which the replicas of a group have the same, unless somebody wants it otherwise.
func (i *Instance) Settings(ctx context.Context) (out []Setting, err error) {
	ctx, cancel := context.WithTimeout(ctx, observeLimit)
	defer cancel()
	err = i.auth.do(ctx, func(c *pgx.Conn) error {
		tx, err := c.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
		if err != nil {
			return err
		}
		out, err = collectSettings(ctx, tx)
		return errors.Join(err, tx.Rollback(ctx))
	})
	if err != nil {
		return nil, fmt.Errorf("ask the server for its settings: %w", err)
	}
	return out, nil
}

func collectSettings(ctx context.Context, tx pgx.Tx) ([]Setting, error) {
	var out []Setting
	for _, q := range []string{privilegedSettings, openSettings} {
		rows, err := tx.Query(ctx, q, ownSettings)
		if err != nil {
			return nil, err
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Setting])
		if err != nil {
			return nil, err
		}
		out = append(out, found...)
		// A role that every server has and that reads no more settings than anybody: what comes next is what may be shown.
		if _, err := tx.Exec(ctx, "SET LOCAL ROLE pg_read_all_stats"); err != nil {
			return nil, err
		}
	}
	return out, nil
}
