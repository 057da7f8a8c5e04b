package bluegreen

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/session"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// forth and back are the names of the publication in each database of blue, and of the subscription of green to it: on
// the way to the new cluster, and on the way back.
const (
	forth = "coterie_green"
	back  = "coterie_blue"
)

// name is the name of the publications and subscriptions.
func (p *Pair) name() string {
	if p.Back {
		return back
	}
	return forth
}

// slot is the name of green's slot for a database of blue with that number.
func (p *Pair) slot(oid uint32) string { return fmt.Sprintf("%s_%d", p.name(), oid) }

// like is the pattern of the names of green's slots.
func (p *Pair) like() string { return strings.ReplaceAll(p.name()+"_", "_", `\_`) + "%" }

// slots is a condition on the slots that are green's on blue: its subscriptions', and those of the first copies. Nobody
// else has logical slots on the way there.
func (p *Pair) slots() string {
	if p.Back {
		return "slot_name LIKE $1"
	}
	return `(slot_name LIKE $1 OR slot_type = 'logical' AND slot_name ~ '^pg_\d+_sync_\d+_\d+$')`
}

// Subscribe begins the copy of all rows. The tables are named one by one: one that is made later is not published, so
// that nobody's UPDATE of it fails for want of a replica identity.
func (p *Pair) Subscribe(ctx context.Context) error {
	databases, err := p.Databases(ctx)
	if err != nil {
		return err
	}
	for _, d := range databases {
		var oid uint32
		var tables []string
		err := in(ctx, p.Blue, d, func(c *pgx.Conn) error {
			if err := c.QueryRow(ctx, "SELECT oid FROM pg_database WHERE datname = current_database()").Scan(&oid); err != nil {
				return err
			}
			var err error
			if tables, err = published(ctx, c); err != nil || len(tables) == 0 {
				return err
			}
			return publish(ctx, c, forth, tables)
		})
		if err == nil && len(tables) > 0 {
			err = in(ctx, p.Green, d, func(c *pgx.Conn) error { return p.subscribe(ctx, c, d, oid) })
		}
		if err != nil {
			return fmt.Errorf("begin the replication: %w", err)
		}
	}
	return nil
}

// published lists the tables of a database whose rows are replicated.
func published(ctx context.Context, c *pgx.Conn) ([]string, error) {
	rows, err := c.Query(ctx, "SELECT format('%I.%I', n.nspname, c.relname) FROM "+mine+" AND c.relkind = 'r' AND c.relpersistence = 'p' ORDER BY c.oid")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// publish makes the publication of tables, each named with its schema.
func publish(ctx context.Context, c *pgx.Conn, name string, tables []string) error {
	if _, err := c.Exec(ctx, "DROP PUBLICATION IF EXISTS "+name); err != nil {
		return err
	}
	_, err := c.Exec(ctx, "CREATE PUBLICATION "+name+" FOR TABLE ONLY "+strings.Join(tables, ", ONLY "))
	return err
}

// ownersWrite is the version from which on the rows of a table are written on green by the table's owner. Before it the
// superuser writes them, and functions of the owner, as in an index or a check, run as the superuser.
const ownersWrite = 16

func (p *Pair) subscribe(ctx context.Context, c *pgx.Conn, database string, oid uint32) error {
	from := fmt.Sprintf("host=%s port=%d user=%s dbname=%s application_name=%s", settings.QuoteConninfo(p.Sockets), session.Port,
		settings.QuoteConninfo(p.Superuser), settings.QuoteConninfo(database), p.name())
	with := fmt.Sprintf("copy_data = %t, create_slot = %[1]t, slot_name = '%s', streaming = off", !p.Back, p.slot(oid))
	if p.Install.Major >= ownersWrite {
		with += ", run_as_owner = false"
	}
	_, err := c.Exec(ctx, fmt.Sprintf("CREATE SUBSCRIPTION %[1]s CONNECTION '%[2]s' PUBLICATION %[1]s WITH (%[3]s)", p.name(), strings.ReplaceAll(from, "'", "''"), with))
	return err
}

// Progress is how far green is.
type Progress struct {
	Tables int    // whose rows are not all there
	Of     int    // tables
	Lag    int64  // bytes of WAL that green has not confirmed
	Failed string // why the replication cannot go on; "": it can
}

// maxErrors bounds the errors of a worker, which tries again by itself. On the way back, which may be open for days,
// only those in a row count: a connection that ends with its server is an error, too.
const maxErrors = 5

// Progress looks how far green is.
func (p *Pair) Progress(ctx context.Context) (g Progress, err error) {
	databases, err := p.Databases(ctx)
	if err != nil {
		return g, err
	}
	failed := int64(0)
	for _, d := range databases {
		err := in(ctx, p.Green, d, func(c *pgx.Conn) error {
			var left, of int
			var errs, at int64
			err := c.QueryRow(ctx, `SELECT count(*) FILTER (WHERE srsubstate <> 'r'), count(*), coalesce((SELECT sum(apply_error_count + sync_error_count) FROM pg_stat_subscription_stats WHERE subid IN
				(SELECT s.oid FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid AND d.datname = current_database())), 0)::bigint
				FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid JOIN pg_database d ON d.oid = s.subdbid AND d.datname = current_database()`).Scan(&left, &of, &errs)
			if err == nil {
				at, err = p.confirmedOf(ctx, d)
			}
			g.Tables, g.Of, failed = g.Tables+left, g.Of+of, max(failed, p.inARow(d, errs, at))
			return err
		})
		if err != nil {
			return g, fmt.Errorf("look at the replication: %w", err)
		}
	}
	if failed > maxErrors {
		g.Failed = "the other cluster cannot take the rows over: " + p.said()
		return g, nil
	}
	want, err := p.subscriptions(ctx)
	if err != nil {
		return g, err
	}
	err = in(ctx, p.Blue, "", func(c *pgx.Conn) error {
		var lost, slots int
		err := c.QueryRow(ctx, `SELECT coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)), 0)::bigint, count(*) FILTER (WHERE wal_status = 'lost'), count(*)
			FROM pg_replication_slots WHERE slot_name LIKE $1`, p.like()).Scan(&g.Lag, &lost, &slots)
		switch {
		case lost > 0:
			g.Failed = "the new cluster is too far behind: max_slot_wal_keep_size has removed WAL that it needs"
		case err == nil && slots != want:
			g.Failed = errSlots.Error()
		}
		return err
	})
	return g, err
}

// errSlots means that nothing says any more what green has got.
var errSlots = errors.New("a replication slot of the new cluster is gone: somebody has dropped it")

// subscriptions counts the subscriptions of green. Each has a slot on blue.
func (p *Pair) subscriptions(ctx context.Context) (n int, err error) {
	err = in(ctx, p.Green, "", func(c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT count(*) FROM pg_subscription WHERE subname = $1", p.name()).Scan(&n)
	})
	return n, err
}

// MakeReady makes what is not replicated and takes long: the planner's statistics, and materialized views that have
// rows on blue.
func (p *Pair) MakeReady(ctx context.Context) error {
	databases, err := p.Databases(ctx)
	if err != nil {
		return err
	}
	for _, d := range databases {
		var views []string
		err := in(ctx, p.Blue, d, func(c *pgx.Conn) error {
			rows, err := c.Query(ctx, "SELECT format('%I.%I', n.nspname, c.relname) FROM "+mine+" AND c.relkind = 'm' AND c.relispopulated ORDER BY c.oid")
			if err == nil {
				views, err = pgx.CollectRows(rows, pgx.RowTo[string])
			}
			return err
		})
		if err == nil {
			err = in(ctx, p.Green, d, func(c *pgx.Conn) error { return refresh(ctx, c, views) })
		}
		if err != nil {
			return fmt.Errorf("make statistics and materialized views: %w", err)
		}
	}
	if p.Keep {
		p.publishBack(ctx, databases)
	}
	return in(ctx, p.Green, "", func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, "CHECKPOINT")
		return err
	})
}

// refresh fills materialized views, those first that need no other, and makes the statistics.
func refresh(ctx context.Context, c *pgx.Conn, views []string) error {
	for len(views) > 0 {
		var left []string
		var last error
		for _, v := range views {
			if _, err := c.Exec(ctx, "REFRESH MATERIALIZED VIEW "+v); err != nil {
				left, last = append(left, v), err
			}
		}
		if len(left) == len(views) {
			return last
		}
		views = left
	}
	_, err := c.Exec(ctx, "ANALYZE")
	return err
}

// Shape is what must not have changed since green was defined.
type Shape struct {
	Print     string
	Databases []string
}

// Finish has green have everything. Blue is quiet: x is the end of its WAL, and nothing writes. Afterwards green's
// server has ended in order. Green has everything indeed if the next transaction of blue that writes still has the
// number next when blue has ended. On the way there nothing of the replication is left on either side then. On the
// way back it is only halted, so that it can go on where it was if the group does not pass.
func (p *Pair) Finish(ctx context.Context, x string, s Shape) (next uint64, err error) {
	if err := p.Carried(ctx, s.Databases); err != nil {
		return 0, err
	}
	if err := p.confirmed(ctx, x); err != nil {
		return 0, err
	}
	if next, err = p.last(ctx, s); err != nil {
		return 0, err
	}
	if err := p.Carried(ctx, s.Databases); err != nil {
		return 0, err
	}
	for _, d := range s.Databases {
		if err := p.finish(ctx, d); err != nil {
			return 0, err
		}
	}
	if !p.Back {
		if err := p.Sweep(ctx, false); err != nil {
			return 0, err
		}
	}
	if p.Keep {
		p.holdBack(ctx, s.Databases)
	}
	return next, p.End(true)
}

// same returns an error if definitions on blue have changed, or may have.
func (p *Pair) same(ctx context.Context, s Shape) error {
	now, err := p.Fingerprint(ctx, s.Databases)
	if err == nil {
		err = Changed(s.Print, now)
	}
	return err
}

// last has green have what blue has written since it was taken for quiet, and returns the number of the transaction
// that would write next. A worker of autovacuum writes as well, and so does a session that ends with temporary tables:
// both are ended. A transaction with a number below next is over then: its WAL is before the end that green confirms,
// and the definitions that it has made are seen. On the way there the publications are removed, as that writes, too.
// Another transaction that has taken a number meanwhile may have changed a definition.
func (p *Pair) last(ctx context.Context, s Shape) (next uint64, err error) {
	var x string
	look := func() error {
		return in(ctx, p.Blue, "", func(c *pgx.Conn) (err error) {
			if _, err := c.Exec(ctx, others, session.Name); err != nil {
				return err
			}
			if next, err = quiet(ctx, c); err != nil {
				return err
			}
			return c.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn()::text").Scan(&x)
		})
	}
	if err := look(); err != nil {
		return 0, err
	}
	if err := p.same(ctx, s); err != nil {
		return 0, err
	}
	if !p.Back {
		p.over.Store(true)
		removed, err := p.unpublish(ctx)
		if err != nil {
			return 0, err
		}
		mine := next + removed
		if err := look(); err != nil {
			return 0, err
		}
		if next != mine {
			if err := p.same(ctx, s); err != nil {
				return 0, err
			}
		}
	}
	return next, p.confirmed(ctx, x)
}

// Over reports whether the replication was ended, so that green cannot follow blue any more.
func (p *Pair) Over() bool { return p.over.Load() }

// confirmed waits until green has flushed what blue has up to x, in each database.
func (p *Pair) confirmed(ctx context.Context, x string) error {
	want, err := p.subscriptions(ctx)
	if err != nil {
		return err
	}
	return in(ctx, p.Blue, "", func(c *pgx.Conn) error {
		for {
			var slots, behind int
			err := c.QueryRow(ctx, "SELECT count(*), count(*) FILTER (WHERE confirmed_flush_lsn IS NULL OR confirmed_flush_lsn < $2::pg_lsn) FROM pg_replication_slots WHERE slot_name LIKE $1", p.like(), x).
				Scan(&slots, &behind)
			switch {
			case err != nil:
				return err
			case slots != want:
				return errSlots
			case behind == 0:
				return nil
			}
			if retry.Sleep(ctx, 5*time.Millisecond) != nil {
				return fmt.Errorf("the new cluster has not got everything of %d databases in time", behind)
			}
		}
	})
}

// finish takes over what is not replicated of one database, and ends the replication of it on green, or halts it.
func (p *Pair) finish(ctx context.Context, database string) error {
	var values []string
	err := in(ctx, p.Blue, database, func(c *pgx.Conn) (err error) {
		values, err = sequences(ctx, c)
		return err
	})
	if err != nil {
		return fmt.Errorf("take the last of it over: %w", err)
	}
	return in(ctx, p.Green, database, func(c *pgx.Conn) error {
		const chunk = 500
		for len(values) > 0 {
			n := min(chunk, len(values))
			if _, err := c.Exec(ctx, strings.Join(values[:n], ";")); err != nil {
				return fmt.Errorf("set the sequences: %w", err)
			}
			values = values[n:]
		}
		if p.Back {
			return halt(ctx, c)
		}
		return unsubscribe(ctx, c, forth)
	})
}

// unsubscribe ends the replication of a database on green. The slot on blue stays.
func unsubscribe(ctx context.Context, c *pgx.Conn, name string) error {
	there, _, err := subscribed(ctx, c, name)
	if err != nil || !there {
		return err
	}
	for _, sql := range []string{"ALTER SUBSCRIPTION " + name + " DISABLE", "ALTER SUBSCRIPTION " + name + " SET (slot_name = NONE)", "DROP SUBSCRIPTION " + name} {
		if _, err := c.Exec(ctx, sql); err != nil {
			return fmt.Errorf("end the replication: %w", err)
		}
	}
	return nil
}

// subscribed reports whether the database of a session has a subscription, and whether that is enabled.
func subscribed(ctx context.Context, c *pgx.Conn, name string) (there, enabled bool, err error) {
	err = c.QueryRow(ctx, "SELECT count(*) > 0, coalesce(bool_or(subenabled), false) FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid WHERE subname = $1 AND datname = current_database()", name).
		Scan(&there, &enabled)
	return there, enabled, err
}

// sequences returns the statements that give each sequence the value that it has here.
func sequences(ctx context.Context, c *pgx.Conn) (set []string, err error) {
	if err := tablesOnly(ctx, c); err != nil {
		return nil, err
	}
	rows, err := c.Query(ctx, `SELECT format('SELECT format(''SELECT setval(%%L, %%s, %%L)'', %L, last_value, is_called) FROM %I.%I', format('%I.%I', n.nspname, c.relname), n.nspname, c.relname)
		FROM `+mine+` AND c.relkind = 'S' AND c.relpersistence <> 't' ORDER BY c.oid`)
	if err != nil {
		return nil, err
	}
	ask, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	return valuesOf(ctx, c, ask)
}

// tablesOnly has a session read no view and no foreign table of users from now on: the owner of a sequence could put
// one in its place after it was listed, whose functions would run as the superuser. Servers of before August 2024 have
// not the setting.
func tablesOnly(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, "SELECT set_config(name, 'view, foreign-table', false) FROM pg_settings WHERE name = 'restrict_nonsystem_relation_kind'")
	return err
}

// valuesOf asks for the statements of sequences.
func valuesOf(ctx context.Context, c *pgx.Conn, ask []string) (set []string, err error) {
	const chunk = 200
	for len(ask) > 0 {
		n := min(chunk, len(ask))
		rows, err := c.Query(ctx, strings.Join(ask[:n], " UNION ALL "))
		if err != nil {
			return nil, err
		}
		some, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, err
		}
		set, ask = append(set, some...), ask[n:]
	}
	return set, nil
}

// Sweep removes green's slots from a server, with the WAL that they keep, and from a primary the publications too.
// Green must not use them any more.
func (p *Pair) Sweep(ctx context.Context, primary bool) error {
	err := in(ctx, p.Blue, "", func(c *pgx.Conn) error {
		for {
			if _, err := c.Exec(ctx, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL AND "+p.slots(), p.like()); err != nil {
				return err
			}
			_, err := c.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active AND "+p.slots(), p.like())
			var left int
			if qerr := c.QueryRow(ctx, "SELECT count(*) FROM pg_replication_slots WHERE "+p.slots(), p.like()).Scan(&left); qerr != nil {
				return qerr
			}
			if left == 0 {
				return nil
			}
			if retry.Sleep(ctx, 10*time.Millisecond) != nil {
				return errors.Join(fmt.Errorf("%d slots of the new cluster are still in use", left), err)
			}
		}
	})
	if err != nil || !primary {
		return err
	}
	_, err = p.unpublish(ctx)
	return err
}

// unpublish removes the publications from blue, each in a transaction, and returns how many there were.
func (p *Pair) unpublish(ctx context.Context) (removed uint64, err error) {
	databases, err := p.Databases(ctx)
	if err != nil {
		return 0, err
	}
	for _, d := range databases {
		err := in(ctx, p.Blue, d, func(c *pgx.Conn) error {
			var there uint64
			if err := c.QueryRow(ctx, "SELECT count(*) FROM pg_publication WHERE pubname = $1", p.name()).Scan(&there); err != nil || there == 0 {
				return err
			}
			removed++
			_, err := c.Exec(ctx, "DROP PUBLICATION IF EXISTS "+p.name())
			return err
		})
		if err != nil {
			return removed, fmt.Errorf("remove the publication: %w", err)
		}
	}
	return removed, nil
}
