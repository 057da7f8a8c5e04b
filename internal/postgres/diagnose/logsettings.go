package diagnose

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// LogSettings are the settings that decide what the server logs, and where. A setting has each value that may be in
// force: what a new session sees, and what the configuration files say.
type LogSettings struct {
	Values   map[string][]string
	Defaults []LogDefault
	Granted  []string // settings that others than superusers may change
}

// LogDefault is a default of a role that is no superuser, or of a database.
type LogDefault struct{ Of, Name, Value string }

// logSettings returns rows of a kind, a name, a value and an owner. Settings of a role that take more than 64 KB on the
// disk would take seconds to be unpacked: they count as ones that hide messages. logging_collector takes a restart, so
// its value in the files is not in force. Grants on parameters exist since PostgreSQL 15.
const (
	logSettings = `WITH names(name) AS (VALUES ('log_min_messages'), ('lc_messages'), ('log_destination'))
SELECT 'value', name, current_setting(name), '' FROM (TABLE names UNION ALL VALUES ('logging_collector')) n
UNION ALL SELECT 'value', lower(f.name), f.setting, '' FROM pg_file_settings f JOIN names n ON lower(f.name) = n.name WHERE f.applied
UNION ALL SELECT 'default', lower(split_part(c, '=', 1)), substr(c, strpos(c, '=') + 1),
	concat_ws(' in ', 'role ' || r.rolname, 'database ' || d.datname)
	FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole LEFT JOIN pg_database d ON d.oid = s.setdatabase,
		unnest(CASE WHEN pg_column_size(s.setconfig) <= 65536 THEN s.setconfig ELSE '{log_min_messages=not known: there are too many settings to be read}' END) c
	WHERE NOT coalesce(r.rolsuper, false) AND lower(split_part(c, '=', 1)) IN (TABLE names)`
	logGrants = `
UNION ALL SELECT 'granted', p.parname, '', '' FROM pg_parameter_acl p WHERE p.parname IN ('log_min_messages', 'lc_messages', 'log_destination', 'logging_collector')
	AND EXISTS (SELECT 1 FROM aclexplode(p.paracl) a LEFT JOIN pg_roles r ON r.oid = a.grantee WHERE NOT coalesce(r.rolsuper, false))`
)

// LogSettings asks a running server, in a new session.
func (k *Checks) LogSettings(ctx context.Context) (LogSettings, error) {
	out := LogSettings{Values: make(map[string][]string)}
	query := logSettings
	if k.server.Version() >= 15 {
		query += logGrants
	}
	err := k.server.Fresh(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, query)
		if err != nil {
			return err
		}
		var kind, name, value, of string
		_, err = pgx.ForEachRow(rows, []any{&kind, &name, &value, &of}, func() error {
			switch kind {
			case "value":
				out.Values[name] = append(out.Values[name], value)
			case "default":
				out.Defaults = append(out.Defaults, LogDefault{of, name, value})
			case "granted":
				out.Granted = append(out.Granted, name)
			}
			return nil
		})
		return err
	})
	if err != nil {
		return out, fmt.Errorf("read the settings of the log: %w", err)
	}
	return out, nil
}
