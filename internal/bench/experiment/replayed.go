package experiment

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"
)

// Follower is a group to whose members' servers there is no way of our own, and which tells how far they are.
type Follower interface {
	// Behind names the secondaries that readers may be sent to and that have not replayed as much as that, each with how far it is.
	Behind(ctx context.Context, lsn string) ([]string, error)
}

// replayPatience is how long replicas may take to replay what was loaded, unless the bed says otherwise: a load can be many gigabytes.
const replayPatience = 10 * time.Minute

// replayed waits until whoever readers may be sent to can see what was loaded: until every member, or the second of a pair, answers a
// query with at least so much; or, where there is no way to the members, until the group says that they have replayed what is written now.
func (b *Bed) replayed(ctx context.Context, sql string, least float64) error {
	servers := map[string]string{}
	if b.Group == nil {
		servers["the second target"] = b.B
	} else {
		members, err := b.Group.Members(ctx)
		if err != nil {
			return err
		}
		for _, m := range members {
			if dsn := b.Group.Own(m); dsn != "" {
				servers[m] = dsn
			}
		}
		if f, ok := b.Group.(Follower); ok && len(servers) < len(members) {
			return b.followed(ctx, f)
		}
	}
	for name, dsn := range servers {
		if err := until(ctx, cmp.Or(b.Patience, replayPatience), name+" to replay what was loaded", func(ctx context.Context) (bool, error) {
			v, err := number(ctx, dsn, sql)
			return v >= least, err
		}); err != nil {
			return err
		}
	}
	return nil
}

// followed waits until nobody who takes readers is behind a record that is written now: one of its own, since the end of what is written
// may lie within a record.
func (b *Bed) followed(ctx context.Context, f Follower) error {
	lsn, err := text(ctx, b.Group.ReadWrite(), "select pg_logical_emit_message(true, 'coterie bench', '')::text")
	if err != nil {
		return err
	}
	said := false
	return until(ctx, cmp.Or(b.Patience, replayPatience), "the readable secondaries to replay what was loaded", func(ctx context.Context) (bool, error) {
		behind, err := f.Behind(ctx, lsn)
		if err != nil || len(behind) == 0 {
			return err == nil, err
		}
		if !said {
			b.Progress.Say("waiting for %s to replay up to %s", strings.Join(behind, ", "), lsn)
			said = true
		}
		return false, fmt.Errorf("it goes up to %s, and behind are %s; see whether replay is paused there, or held up by a query", lsn, strings.Join(behind, ", "))
	})
}

// loading is Progress.Loading for loads of one table.
func (b *Bed) loading(what string) func(done, total int) {
	tell, begun := b.Progress.Loading(what), false
	return func(done, total int) {
		if !begun { // such a load first tells of itself when its first part is there
			tell(0, int64(total))
		}
		begun = true
		tell(int64(done), int64(total))
	}
}
