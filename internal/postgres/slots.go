package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
)

// SlotName is the name of the physical slot of a member.
func SlotName(member ag.ReplicaID) string { return applicationPrefix + string(member) }

// SeedSlotPrefix begins the names of the slots of seeding windows. They are nobody's stray slots.
const SeedSlotPrefix = "cot_seed_"

// EnsureSlots makes the members' physical slots be as wanted: missing ones are created, reserving WAL at once; inactive
// ones named cot_* that are not wanted are dropped, those of seeding windows excepted; in recovery each inactive wanted
// slot is advanced to its minimum, so that this copy keeps what any other would need to follow it, and no more
// (docs/internals/postgresql.md, "Slots"). It is never advanced beyond this copy's own last restartpoint: a member that
// is rewound from this copy begins at the last checkpoint that both have, which is no older.
func (i *Instance) EnsureSlots(ctx context.Context, want []string, min map[string]ag.LSN) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	o, err := i.Observe(ctx)
	if err != nil {
		return fmt.Errorf("replication slots: %w", err)
	}
	have := map[string]Slot{}
	for _, s := range o.Slots {
		have[s.Name] = s
		stray := strings.HasPrefix(s.Name, applicationPrefix) && !strings.HasPrefix(s.Name, SeedSlotPrefix) && !slices.Contains(want, s.Name)
		if !stray || s.Active || s.Type != "physical" {
			continue
		}
		if err := i.exec(ctx, "SELECT pg_drop_replication_slot($1)", s.Name); err != nil {
			return fmt.Errorf("drop replication slot %s: %w", s.Name, err)
		}
		i.log.Info("dropped a replication slot of no member", "slot", s.Name, "restart_lsn", s.Restart)
	}
	for _, name := range want {
		if err := i.ensureSlot(ctx, name, have, o, min[name]); err != nil {
			return fmt.Errorf("replication slot %s: %w", name, err)
		}
	}
	return nil
}

func (i *Instance) ensureSlot(ctx context.Context, name string, have map[string]Slot, o Observation, to ag.LSN) error {
	s, ok := have[name]
	if ok && s.WALStatus == "lost" && !s.Active {
		// It no longer protects anything and cannot be used again.
		if err := i.exec(ctx, "SELECT pg_drop_replication_slot($1)", name); err != nil {
			return err
		}
		i.log.Warn("a replication slot had lost its WAL and is made anew", "slot", name)
		ok = false
	}
	if !ok {
		if err := i.exec(ctx, "SELECT pg_create_physical_replication_slot($1, true)", name); err != nil {
			return err
		}
		return nil // reserved from here on; the next call advances it
	}
	to = min(to, o.Replay) // the server refuses to go beyond what it has replayed
	if !o.InRecovery || s.Active || to <= s.Restart || s.Restart == 0 {
		return nil
	}
	return i.exec(ctx, `SELECT pg_replication_slot_advance($1, least($2::text::pg_lsn, redo_lsn))
		FROM pg_control_checkpoint() WHERE redo_lsn > $3::text::pg_lsn`, name, to.String(), s.Restart.String())
}

// TerminateWalsender ends every walsender with that application_name.
func (i *Instance) TerminateWalsender(ctx context.Context, appName string) error {
	ctx, cancel := context.WithTimeout(ctx, observeLimit)
	defer cancel()
	if err := i.exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE application_name = $1", appName); err != nil {
		return fmt.Errorf("end the walsender of %s: %w", appName, err)
	}
	return nil
}

// EndWalsenders ends every walsender of a member, whatever its epoch and whoever receives from it.
func (i *Instance) EndWalsenders(ctx context.Context, member string) error {
	ctx, cancel := context.WithTimeout(ctx, observeLimit)
	defer cancel()
	o, err := i.Observe(ctx)
	if err != nil {
		return fmt.Errorf("end the walsenders of %s: %w", member, err)
	}
	err = i.main.do(ctx, func(c *pgx.Conn) error {
		for _, w := range o.Replication {
			if m, _, ok := ParseApplication(w.Application); !ok || string(m) != member {
				continue
			}
			if _, err := c.Exec(ctx, "SELECT pg_terminate_backend($1)", w.PID); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("end the walsenders of %s: %w", member, err)
	}
	return nil
}

// WalsenderRows counts the walsenders of a member, whatever their epoch. A new stream of the member is admitted only
// when there is none (docs/internals/safety.md, "Streams").
func (i *Instance) WalsenderRows(ctx context.Context, member string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, observeLimit)
	defer cancel()
	n := 0
	err := i.main.do(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, "SELECT application_name FROM pg_stat_replication")
		if err != nil {
			return err
		}
		names, err := pgx.CollectRows(rows, pgx.RowTo[*string])
		n = 0
		for _, name := range names {
			if name == nil {
				continue
			}
			if m, _, ok := ParseApplication(*name); ok && string(m) == member {
				n++
			}
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("count the walsenders of %s: %w", member, err)
	}
	return n, nil
}
