package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
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

// answerBackupStep does a step of a backup that another replica makes.
func (n *node) answerBackupStep(ctx context.Context, peer certs.Identity, r backup.StepRequest) (none backup.StepAnswer, err error) {
	if m, ok := n.members.Replica(peer.ID); !ok || !m.HasData() || n.backups == nil {
		return none, fail.Refusedf("%s is no replica of this group with data, or this node is none: it has no part in backups", peer.ID)
	}
	return n.backups.Windows.Do(ctx, string(peer.ID), r)
}
