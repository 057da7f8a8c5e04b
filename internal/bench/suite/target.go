package suite

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/bench/experiment"
	"github.com/coteriedb/coterie/internal/lib/fail"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
	"github.com/coteriedb/coterie/internal/measure/workload"
)

// answers returns an error if a target does not accept a connection now. Clients of an experiment retry until its end,
// so a wrong string must fail before they begin.
func answers(ctx context.Context, flag, dsn string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return fail.Usagef("%s: %w", flag, err)
	}
	cfg.RuntimeParams["application_name"] = "coterie bench" // this session may still exist when mayUse looks for others
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("%s: %w; see whether psql gets in with the same string", flag, err)
	}
	return conn.Close(ctx)
}

// mayUse refuses a target if any of its servers seems to be in use.
func (f *Options) mayUse(ctx context.Context, bed *experiment.Bed) error {
	if f.Yes {
		return nil
	}
	if bed.Group == nil {
		if err := unused(ctx, "--target-a", bed.A); err != nil {
			return err
		}
		return unused(ctx, "--target-b", bed.B)
	}
	if err := unused(ctx, "the group's primary", bed.Group.ReadWrite()); err != nil {
		return err
	}
	members, err := bed.Group.Members(ctx)
	if err != nil {
		return err
	}
	for range members { // the listeners send readers to the secondaries in turn
		short, cancel := context.WithTimeout(ctx, 10*time.Second)
		why, err := workload.LooksUsed(short, bed.Group.ReadOnly())
		cancel()
		if err != nil {
			return context.Cause(ctx) // no server takes readers, so no other client is disturbed
		}
		if why != "" {
			return looksUsed("a readable secondary of the group", why)
		}
	}
	return nil
}

// unused refuses one server that seems to be in use.
func unused(ctx context.Context, what, dsn string) error {
	why, err := workload.LooksUsed(ctx, dsn)
	if err != nil || why == "" {
		return err
	}
	return looksUsed(what, why)
}

func looksUsed(what, why string) error {
	return fail.Refusedf("%s looks as if somebody needed it: %s. A benchmark takes all it can get of a server; use one of its own, or say --yes", what, why)
}

// noteServer adds the version of the server, and its changed settings, to the report.
func noteServer(ctx context.Context, r *benchreport.Report, dsn string) error {
	conn, err := workload.Open(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, `select name, current_setting(name) from pg_settings where source not in ('default', 'override', 'client', 'session')
		and name !~ '(password|secret|ssl_.*file|command|conninfo|path|directory)' or name in ('server_version', 'synchronous_commit', 'synchronous_standby_names')`)
	if err != nil {
		return err
	}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		r.Settings["postgresql: "+name] = benchreport.Redact(value)
		return nil
	})
	return err
}
