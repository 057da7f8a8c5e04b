package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
	"github.com/coteriedb/coterie/internal/postgres/seeding/source"
)

// newSource serves copies of this node's server to the other members.
func (n *node) newSource() *source.Source {
	return source.New(source.Config{
		Data: n.pg.Config().PGData, Connect: n.pg.Session, Logger: n.log.With("part", "seeding"), AtOnce: n.cfg.SeedingsAtOnce,
		Leads: func() (ag.Epoch, bool) {
			f := n.agent.Facts()
			return f.Epoch, f.Leading
		},
		Follows: func() (ag.Epoch, bool) {
			v := n.agent.View()
			if v == nil || v.Local.Server != ag.ServerRecovery || v.Local.Data != ag.DataPresent || v.Local.Quarantine != "" || v.Local.Source != v.Record.Epoch.Leader {
				return 0, false
			}
			return v.Local.SourceEp, v.Local.SourceEp == v.Record.Epoch.Epoch && v.Record.Epoch.Phase == ag.PhaseLead
		},
	})
}

func (n *node) serveSeed(ctx context.Context, peer certs.Identity, conn net.Conn) {
	if n.awaitReady(ctx) && n.seeds != nil {
		n.seeds.Serve(ctx, peer.ID, conn)
	}
}

// seeder fills this node's data directory from another replica.
type seeder struct{ n *node }

func (s *seeder) Seed(ctx context.Context, leader ag.Replica, e ag.Epoch, note func(string)) (ag.CopyID, error) {
	n := s.n
	from, why := n.chooseSource(leader)
	ctx, op, w := n.desk.attempt(ctx, from, why)
	r, err := s.attempt(ctx, from, leader, e, w, func(p progress.Progress) {
		n.desk.show(op, p)
		note(seedProgress(p))
	})
	n.desk.ended(op, e, ctx.Err() != nil && !errors.Is(context.Cause(ctx), seeding.ErrCancelled), err)
	if err != nil {
		return "", err
	}
	p := r.Progress
	n.log.Info("seeded", "from", from.ID, "bytes", p.Done, "same", p.Same, "wire", p.Wire, "took", p.Took.Round(time.Millisecond), "codec", p.Codec,
		"windows", p.Windows, "cuts", p.Cuts)
	return r.Copy, n.pg.ForgetRewind() // a rewind that failed before is history now
}

func (s *seeder) attempt(ctx context.Context, from, leader ag.Replica, e ag.Epoch, w wish, show func(progress.Progress)) (seeding.Result, error) {
	n := s.n
	me, _ := n.members.Replica(n.self)
	if me.Options.NoSeeding || me.Options.ManualSeeding && !w.Asked {
		return seeding.Result{}, fmt.Errorf("%w (SEEDING_MODE = MANUAL, or denied); allow it, or ask for a copy with coterie seed %s", seeding.ErrForbidden, n.self)
	}
	dial := func(to ag.Replica) func(context.Context) (net.Conn, error) {
		return func(ctx context.Context) (net.Conn, error) {
			return n.endpoint.Dial(ctx, to.Endpoint, endpoint.ClassSeed, to.ID)
		}
	}
	var anchor func(context.Context) (net.Conn, error)
	if from.ID != leader.ID {
		anchor = dial(leader)
	}
	return seeding.Run(ctx, seeding.Options{
		Dial: dial(from), Anchor: anchor,
		Member: n.self, Epoch: e, Target: n.pg.Config().PGData, StateDir: n.layout.State(), From: w.From,
		Compression: me.Options.SeedCompression, Spread: spreads(me.Options.SeedMaxRate, n.sessions.routes.Load()),
		MaxRate: func() int64 {
			me, _ := n.members.Replica(n.self) // as it is now: the rate may be changed while a copy is made
			return me.Options.SeedMaxRate
		},
		TablespaceMap: func(_ uint32, location string) (string, error) {
			if place, ok := n.cfg.Tablespaces[location]; ok {
				return place, nil
			}
			return location, nil // CREATE TABLESPACE is replayed with the same path everywhere
		},
		NodeFiles: func(id ag.CopyID) map[string][]byte { return map[string][]byte{copyFile: []byte(string(id) + "\n")} },
		Progress:  show,
	})
}

// spreads says whether a copy is to begin with a checkpoint that takes its time, most of checkpoint_timeout. A limited copy is to leave the
// source to its work; where nobody can write there is none, and it may be this copy for which writes wait.
func spreads(limit int64, r *ag.Routes) bool { return limit > 0 && r != nil && r.WriteOpen }

// chooseSource says from whom a copy is made: from the primary, unless a healthy secondary has a higher BACKUP_PRIORITY, or the last
// attempt was from one and failed.
func (n *node) chooseSource(leader ag.Replica) (ag.Replica, string) {
	v, snap := n.agent.View(), n.agent.Snapshot()
	if v == nil || snap == nil {
		return leader, "the primary"
	}
	if op, ok := n.desk.journal.Last(); ok && !op.State.Ended() && op.Failure != nil && op.Source != "" && op.Source != leader.ID {
		return leader, fmt.Sprintf("the primary: the copy from %s failed", op.Source)
	}
	return bestSource(v, snap.Statuses, n.self, leader)
}

// bestSource is the healthy secondary with the highest BACKUP_PRIORITY above the primary's, or the primary, and why.
func bestSource(v *ag.View, said map[ag.ReplicaID]agent.Status, self ag.ReplicaID, leader ag.Replica) (ag.Replica, string) {
	if v.Group.Options.BackupPreference == ag.BackupPrimary {
		return leader, "the primary: AUTOMATED_BACKUP_PREFERENCE is PRIMARY"
	}
	best, most := leader, backupPriority(leader)
	for _, r := range v.Group.Replicas {
		st := said[r.ID]
		healthy := r.HasData() && !r.Suspended && st.Stream && st.Server == ag.ServerRecovery && st.Busy == "" && st.Ill == "" && st.Quarantine == "" &&
			slices.Contains(v.Reach, r.ID)
		if r.ID != self && r.ID != leader.ID && healthy && backupPriority(r) > most {
			best, most = r, backupPriority(r)
		}
	}
	if best.ID == leader.ID {
		return leader, fmt.Sprintf("the primary: no healthy secondary has a higher BACKUP_PRIORITY than its %d", most)
	}
	return best, fmt.Sprintf("its BACKUP_PRIORITY %d is above the primary's %d", most, backupPriority(leader))
}

func backupPriority(r ag.Replica) int {
	if r.Options.BackupPriority == nil {
		return 50
	}
	return *r.Options.BackupPriority
}

// seedProgress is one line for people.
func seedProgress(p progress.Progress) string {
	line := p.Phase
	if p.Total > 0 {
		line = fmt.Sprintf("%s %d of %d MiB", p.Phase, p.Done>>20, p.Total>>20)
		if p.Same > 0 {
			line += fmt.Sprintf(", %d MiB were there", p.Same>>20)
		}
		line += fmt.Sprintf(", %d MiB on the wire", p.Wire>>20)
	}
	if eta := p.ETA(); eta > 0 && p.Phase == progress.PhaseCopy {
		line += fmt.Sprintf(", %v left", eta.Round(time.Second))
	}
	if p.Waiting == "" {
		return line
	}
	return strings.TrimPrefix(line+"; "+p.Waiting, "; ")
}
