package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndDouble kills a primary, and its successor as soon as it leads in the record. The successor stays
// dead, and no operator acts: the replica that was sealed with it leads next, with every row.
func TestEndToEndDouble(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	early := 0
	for range 3 {
		was := g.ready(t)
		g.judge(t) // ends the writer: both secondaries have everything
		g.await(t, "both stand where the primary stands", func(lab.Status) bool {
			return sql(t, g.ReadWrite(), "SELECT count(*) FROM pg_stat_replication WHERE flush_lsn = pg_current_wal_flush_lsn()") == "2"
		})
		if err := g.Kill(*was.Primary, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
		next, k := g.leads(t, was)
		if err := g.Kill(next, lab.WhatNode); err != nil {
			t.Fatal(err)
		}
		opened := strings.Contains(g.log(next, "agent.log"), fmt.Sprintf(`"open for writes" epoch=%d`, was.Epoch+1))
		t.Logf("%s after %s, of whom %d have everything; open: %t", next, *was.Primary, k, opened)
		if !opened {
			early++
		}
		g.start(t, *was.Primary) // the quorum needs it
		if k == 0 {              // the server wrote a record at that very moment, and one secondary had not got it
			g.revive(t, next)
		} else {
			s := g.await(t, "a primary that nobody named", func(s lab.Status) bool { return s.Primary != nil && *s.Primary != next && s.Epoch > was.Epoch+1 })
			t.Logf("%s leads epoch %d", *s.Primary, s.Epoch)
		}
		g.write(t)
		g.revive(t, next)
		g.acknowledged(t, 20)
	}
	t.Logf("%d of 3 died before any client was let in", early)
	g.down(t)
}

// leads returns the leader as soon as the record has one, and the k with which the epoch starts.
func (g *group) leads(t *testing.T, was lab.Status) (node string, k int) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		for _, n := range secondaries(was) {
			s, err := g.status(t, n)
			if err == nil && s.Phase == ag.PhaseLead && s.Epoch > was.Epoch && member(s, n).Role == ag.RolePrimary {
				return n, s.SyncCount
			}
		}
	}
	t.Fatal("nobody leads")
	return "", 0
}

// TestEndToEndGone takes a secondary's data away while the primary lives: it is dropped at its own report, long before
// SESSION_TIMEOUT, so that the other one may lead when the primary dies.
func TestEndToEndGone(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	was := g.ready(t)
	lost, other := secondaries(was)[0], secondaries(was)[1]
	g.says(t, *was.Primary, "ALTER AVAILABILITY GROUP [lab] SET (REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT = 0)",
		"ALTER AVAILABILITY GROUP [lab] MODIFY REPLICA ON N'"+lost+"' WITH (SEEDING_MODE = MANUAL)", // it stays empty
		"ALTER AVAILABILITY GROUP [lab] MODIFY REPLICA ON N'"+lost+"' WITH (SESSION_TIMEOUT = 600)")
	g.ready(t)
	began := time.Now()
	rename(t, g.data(lost), g.data(lost)+".lost")
	if err := g.Kill(lost, lab.WhatPostgres); err != nil {
		t.Fatal(err)
	}
	g.await(t, lost+" is dropped", func(lab.Status) bool {
		s, err := g.status(t, *was.Primary)
		return err == nil && s.SyncCount == 1 && len(s.SyncMembers) == 1 && s.SyncMembers[0].ID == ag.ReplicaID(other)
	})
	t.Logf("dropped after %v; SESSION_TIMEOUT is 10 minutes", time.Since(began).Round(time.Millisecond))
	g.acknowledged(t, 50)
	if err := g.Kill(*was.Primary, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	if s := g.newPrimary(t, was); *s.Primary != other {
		t.Errorf("%s leads, whose data is gone", *s.Primary)
	}
	g.acknowledged(t, 20)
	g.start(t, *was.Primary)
	g.says(t, other, "ALTER AVAILABILITY GROUP [lab] MODIFY REPLICA ON N'"+lost+"' WITH (SEEDING_MODE = AUTOMATIC)")
	g.revive(t, *was.Primary, lost)
	g.down(t)
}
