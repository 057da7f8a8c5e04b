package bluegreen

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Held is what green keeps for the way back, since it has everything.
type Held struct {
	Print string // the fingerprint of its definitions
	Slots int    // one for each database with tables
	Why   error  // why it keeps nothing; nil: it does
}

// errNoSlots is Held.Why before anything was made.
var errNoSlots = errors.New("the new cluster was not made ready for it")

// Held returns what green keeps for the way back.
func (p *Pair) Held() Held {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

func (p *Pair) hold(h Held) {
	p.mu.Lock()
	p.held = h
	p.mu.Unlock()
}

// publishBack makes the publications for the way back on green, while clients go on. A failure is no failure of the way
// there.
func (p *Pair) publishBack(ctx context.Context, databases []string) {
	h := Held{Why: errNoSlots}
	defer func() { p.hold(h) }()
	if h.Why = p.workers(ctx, len(databases)); h.Why != nil {
		return
	}
	for _, d := range databases {
		err := in(ctx, p.Green, d, func(c *pgx.Conn) error {
			var level string
			if err := c.QueryRow(ctx, "SHOW wal_level").Scan(&level); err != nil || level != "logical" {
				return errors.Join(err, fmt.Errorf("wal_level of the new cluster is %s", level))
			}
			tables, err := published(ctx, c)
			if err == nil && len(tables) > 0 {
				err = publish(ctx, c, back, tables)
			}
			return err
		})
		if err != nil {
			h.Why = err
			return
		}
	}
	h.Print, h.Why = fingerprint(ctx, p.Green, databases)
}

// workers returns an error if blue cannot follow so many databases with the processes that its settings allow. They are
// not raised for it: the standbys of a server that has once had more stop their recovery.
func (p *Pair) workers(ctx context.Context, databases int) error {
	return in(ctx, p.Blue, "", func(c *pgx.Conn) error {
		var has int
		err := c.QueryRow(ctx, "SELECT current_setting('max_worker_processes')::int").Scan(&has)
		if need := databases + 2; err == nil && has < need {
			err = fmt.Errorf("max_worker_processes is %d, and the old cluster needs %d to follow %d databases", has, need, databases)
		}
		return err
	})
}

// holdBack makes the slots for the way back on green, which has everything. The writes to green from then on are in
// them, and nothing else.
func (p *Pair) holdBack(ctx context.Context, databases []string) {
	h := p.Held()
	if h.Why != nil {
		return
	}
	h.Slots = 0
	for _, d := range databases {
		err := in(ctx, p.Green, d, func(c *pgx.Conn) error {
			var made int
			err := c.QueryRow(ctx, `SELECT count(pg_create_logical_replication_slot($1 || '_' || d.oid, 'pgoutput')) FROM pg_database d
				WHERE d.datname = current_database() AND EXISTS (SELECT FROM pg_publication WHERE pubname = $1)`, back).Scan(&made)
			h.Slots += made
			return err
		})
		if err != nil {
			h.Why = fmt.Errorf("make the slots for it: %w", err)
			break
		}
	}
	p.hold(h)
}

// Follow has green, which was left, follow blue in each database for which there is a slot, from where that begins, and
// returns how many there are. A database that has followed before goes on where it was.
func (p *Pair) Follow(ctx context.Context) (n int, err error) {
	databases, err := p.Databases(ctx)
	if err != nil {
		return 0, err
	}
	for _, d := range databases {
		var oid uint32
		var slot bool
		err := in(ctx, p.Blue, d, func(c *pgx.Conn) error {
			return c.QueryRow(ctx, `SELECT d.oid, EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 || '_' || d.oid) FROM pg_database d WHERE d.datname = current_database()`, p.name()).
				Scan(&oid, &slot)
		})
		if err == nil && slot {
			n++
			err = in(ctx, p.Green, d, func(c *pgx.Conn) error {
				there, enabled, err := subscribed(ctx, c, back)
				if err == nil && !there {
					return p.subscribe(ctx, c, d, oid)
				}
				if err == nil && !enabled {
					_, err = c.Exec(ctx, "ALTER SUBSCRIPTION "+back+" ENABLE")
				}
				return err
			})
		}
		if err != nil {
			return n, fmt.Errorf("have the old cluster follow: %w", err)
		}
	}
	return n, nil
}

// halt has a database follow no more for now. The subscription keeps how far it is: a slot may say less after a crash.
func halt(ctx context.Context, c *pgx.Conn) error {
	there, _, err := subscribed(ctx, c, back)
	if err == nil && there {
		_, err = c.Exec(ctx, "ALTER SUBSCRIPTION "+back+" DISABLE")
	}
	return err
}

// Leave ends the replication for the way back in every database of a cluster that has followed. The slots of the other
// cluster stay.
func Leave(ctx context.Context, open func(ctx context.Context, database string) (*pgx.Conn, error)) error {
	all, err := databases(ctx, open)
	if err != nil {
		return err
	}
	for _, d := range all {
		if err := in(ctx, open, d, func(c *pgx.Conn) error { return unsubscribe(ctx, c, back) }); err != nil {
			return err
		}
	}
	return nil
}

// Retained returns how much WAL blue keeps for green, in bytes, and how many slots of green there are.
func (p *Pair) Retained(ctx context.Context) (kept int64, slots int, err error) {
	err = in(ctx, p.Blue, "", func(c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)), 0)::bigint, count(*) FROM pg_replication_slots WHERE slot_name LIKE $1", p.like()).
			Scan(&kept, &slots)
	})
	return kept, slots, err
}

// workerErrors are those of the workers of a database, as Progress has seen them.
type workerErrors struct {
	before int64 // that do not count any more: the worker has come further since
	at     int64 // the position in WAL that was confirmed then, as a number
}

// inARow returns how many errors of the workers of a database count, by how many there are and by what is confirmed.
// A transaction that cannot be applied is never confirmed.
func (p *Pair) inARow(database string, errs, confirmed int64) int64 {
	if !p.Back {
		return errs
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	was, seen := p.errors[database]
	if !seen || confirmed > was.at || errs < was.before { // the server counts anew when its statistics are lost
		if p.errors == nil {
			p.errors = map[string]workerErrors{}
		}
		was = workerErrors{errs, confirmed}
		p.errors[database] = was
	}
	return errs - was.before
}

// confirmedOf returns what green has confirmed of a database of blue, as a number; 0 where it has no slot for it.
func (p *Pair) confirmedOf(ctx context.Context, database string) (at int64, err error) {
	err = in(ctx, p.Blue, "", func(c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT coalesce(max(confirmed_flush_lsn - '0/0'::pg_lsn), 0)::bigint FROM pg_replication_slots s JOIN pg_database d ON d.oid = s.datoid
			WHERE d.datname = $1 AND slot_name LIKE $2`, database, p.like()).Scan(&at)
	})
	return at, err
}
