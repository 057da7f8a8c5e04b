package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/backupruns"
	"github.com/coteriedb/coterie/internal/node/backups"
	"github.com/coteriedb/coterie/internal/node/metrics"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// How long a step of a backup may take at the primary: one that makes a checkpoint, and any other.
const (
	checkpointStep = 10 * time.Minute
	otherStep      = 30 * time.Second
)

// backupStep asks the primary for a step, which may be this node by now.
func (n *node) backupStep(ctx context.Context, r backup.StepRequest) (none backup.StepAnswer, err error) {
	v := n.agent.View()
	if v == nil || n.backups == nil {
		return none, fail.Unhealthyf("this node knows no primary")
	}
	leader := v.Record.Epoch.Leader
	if leader == n.self {
		return n.backups.Windows.Do(ctx, string(n.self), r)
	}
	to, ok := n.members.Replica(leader)
	if !ok {
		return none, fail.Unhealthyf("the group has no primary at the moment")
	}
	limit := otherStep
	if r.Step == backup.Look || r.Step == backup.Start {
		limit = checkpointStep
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := rpc.Call(ctx, n.control, to, rpc.BackupStep, r)
	var said fail.Error
	if err != nil && !errors.As(err, &said) {
		err = fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("the primary %s, which begins and ends the backup, is not reached: %w; run it again once the group has a primary that this node reaches", leader, err)}
	}
	return out, err
}

// openBackups makes the parts of this node that look at the backups and make them for other nodes.
func (n *node) openBackups() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	log := n.log.With("part", "backups")
	n.backups = backups.New(backups.Config{Layout: n.layout, Server: n.pg, Connect: n.pg.Session, Leads: n.leads, Log: log})
	n.backupJobs = backupruns.NewJobs(backupruns.Config{Self: string(n.self), Node: n.layout.Dir, Backups: n.layout.Backup(), Exe: exe, Log: log})
	return nil
}

// serveBackups offers what other nodes ask for their backups and of this node's.
func (n *node) serveBackups(gate rpc.Gate) {
	rpc.Handle(gate, rpc.BackupStep, n.answerBackupStep)
	rpc.Handle(gate, rpc.BackupRun, func(_ context.Context, _ certs.Identity, r backup.RunRequest) (backup.Run, error) {
		return n.startBackup(r)
	})
	rpc.Handle(gate, rpc.BackupActivity, func(context.Context, certs.Identity, rpc.Nothing) (backup.Activity, error) {
		return n.ownActivity()
	})
}

// backupCall is how long another node may take to answer a request about its backups.
const backupCall = 10 * time.Second

// backupRun has a replica make a backup, which may be this node.
func (n *node) backupRun(ctx context.Context, r api.BackupRunRequest) (backup.Run, error) {
	if err := r.Check(); err != nil {
		return backup.Run{}, err
	}
	to, err := n.withData(r.On)
	if err != nil || to.ID == n.self {
		return ownOr(err, func() (backup.Run, error) { return n.startBackup(r.RunRequest) })
	}
	return callForBackups(ctx, n.control, to, rpc.BackupRun, r.RunRequest)
}

// BackupActivity implements api.Node.
func (a *admin) BackupActivity(ctx context.Context, on ag.ReplicaID) (backup.Activity, error) {
	to, err := a.backups.withData(on)
	if err != nil || to.ID == a.backups.self {
		return ownOr(err, a.backups.ownActivity)
	}
	return callForBackups(ctx, a.backups.control, to, rpc.BackupActivity, rpc.Nothing{})
}

// ownOr returns this node's own answer unless there is an error.
func ownOr[T any](err error, own func() (T, error)) (none T, _ error) {
	if err != nil {
		return none, err
	}
	return own()
}

// withData returns a replica that holds data.
func (n *node) withData(id ag.ReplicaID) (ag.Replica, error) {
	r, ok := n.members.Replica(id)
	switch {
	case !ok:
		return r, fail.Numberedf(41167, "the group has no member %s", id).WithHint("see coterie status")
	case !r.HasData():
		return r, fail.Refusedf("%s is a witness and holds no data", id)
	}
	return r, nil
}

// callForBackups calls a method about backups at another replica.
func callForBackups[Req, Resp any](ctx context.Context, c rpc.Caller, to ag.Replica, m rpc.Method[Req, Resp], req Req) (Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, backupCall)
	defer cancel()
	out, err := rpc.Call(ctx, c, to, m, req)
	var said fail.Error
	if err != nil && !errors.As(err, &said) {
		err = fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("%s does not answer about its backups: %w", to.ID, err)}
	}
	return out, err
}

func (n *node) startBackup(r backup.RunRequest) (backup.Run, error) {
	if n.backupJobs == nil {
		return backup.Run{}, fail.Refusedf("%s is a witness and holds no data", n.self)
	}
	return n.backupJobs.Start(r)
}

// ownActivity returns this node's work on backups.
func (n *node) ownActivity() (a backup.Activity, err error) {
	if n.backupJobs == nil {
		return a, fail.Refusedf("%s is a witness and holds no data", n.self)
	}
	a = n.backupJobs.Activity()
	if b := n.backups.Latest(); b != nil {
		a.Last, a.LastLabel, a.LastNode = b.Last, b.LastLabel, b.LastNode
	}
	return a, nil
}

// askBackups asks the other replicas for their work on backups. One that does not answer, as one of an earlier version,
// is left out.
func (n *node) askBackups(ctx context.Context) map[ag.ReplicaID]backup.Activity {
	g := n.members.Group()
	if g == nil {
		return nil
	}
	others := slices.DeleteFunc(slices.Clone(g.Replicas), func(r ag.Replica) bool { return r.ID == n.self || !r.HasData() })
	said, _ := rpc.Each(ctx, others, func(ctx context.Context, r ag.Replica) (backup.Activity, error) {
		return rpc.Call(ctx, n.control, r, rpc.BackupActivity, rpc.Nothing{})
	})
	return said
}

// shownBackups is what this node shows of the backups.
type shownBackups struct {
	*backups.Service
	jobs *backupruns.Jobs
}

// Latest returns what was seen last, with what is under way here.
func (s shownBackups) Latest() *catalog.Backup {
	b := s.Service.Latest()
	if b == nil {
		return nil
	}
	out := *b
	a := s.jobs.Activity()
	out.Run, out.Restores = a.Run, a.Restores
	return &out
}

// measureBackups adds what all replicas tell of their backups. A node that has no repository of its own gets the age of
// the newest backup from them.
func (n *node) measureBackups(f *metrics.Facts) {
	all := n.otherRuns.Latest()
	if own, err := n.ownActivity(); err == nil {
		all[n.self] = own
	}
	var last backup.Activity
	f.BackupRuns = map[ag.ReplicaID]metrics.BackupRun{}
	for id, a := range all {
		m := metrics.BackupRun{UnderWay: a.Run.UnderWay(), Done: a.Run.Percent / 100}
		for _, r := range a.Restores {
			if r.Interrupted {
				m.Interrupted++
			}
		}
		f.BackupRuns[id] = m
		if a.Last.After(last.Last) {
			last = a
		}
	}
	if f.Backup == nil && !last.Last.IsZero() {
		age := time.Since(last.Last)
		f.Backup = &metrics.Backup{Age: &age, Node: last.LastNode}
	}
}

// answerBackupStep does a step of a backup that another replica makes.
func (n *node) answerBackupStep(ctx context.Context, peer certs.Identity, r backup.StepRequest) (none backup.StepAnswer, err error) {
	if m, ok := n.members.Replica(peer.ID); !ok || !m.HasData() || n.backups == nil {
		return none, fail.Refusedf("%s is no replica of this group with data, or this node is none: it has no part in backups", peer.ID)
	}
	return n.backups.Windows.Do(ctx, string(peer.ID), r)
}
