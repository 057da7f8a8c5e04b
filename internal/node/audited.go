package node

import (
	"context"
	"encoding/json"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
)

// socketUser is what a user of the management socket, who is the node's own or root, is called in the audit.
var socketUser = console.Principal{User: "coterie", May: ddl.MayConfigureServers, Via: console.ViaSocket}

// note keeps for the audit what a command on this node asked for. Statements are noted where they are executed.
func (a *admin) note(operation string, req any, began time.Time, err error) {
	if text, bad := json.Marshal(req); bad == nil && req != nil {
		operation += " " + string(text)
	}
	a.operate.Note(socketUser, operation, time.Since(began), err)
}

// Failover implements api.Node.
func (a *admin) Failover(ctx context.Context, req api.FailoverRequest) (r api.FailoverResult, err error) {
	if !req.DryRun {
		defer func(began time.Time) { a.note("failover", req, began, err) }(time.Now())
	}
	return a.operate.Failover(ctx, req)
}

// Restart implements api.Node.
func (a *admin) Restart(ctx context.Context, req api.RestartRequest) (err error) {
	defer func(began time.Time) { a.note("restart", req, began, err) }(time.Now())
	return a.operate.Restart(ctx, req)
}

// RestartAgent implements api.Node.
func (a *admin) RestartAgent(ctx context.Context, req api.AgentRequest) (err error) {
	defer func(began time.Time) { a.note("restart agent", req, began, err) }(time.Now())
	return a.operate.RestartAgent(ctx, req)
}

// CreateToken implements api.Node.
func (a *admin) CreateToken(ctx context.Context, req api.TokenRequest) (r api.TokenResult, err error) {
	defer func(began time.Time) { a.note("token", req, began, err) }(time.Now())
	return a.operate.CreateToken(ctx, req)
}

// RotateAuthority implements api.Node.
func (a *admin) RotateAuthority(ctx context.Context, req api.RotateRequest) (r api.Rotation, err error) {
	defer func(began time.Time) { a.note("ca rotate", req, began, err) }(time.Now())
	return a.operate.RotateAuthority(ctx, req)
}

// Remove implements api.Node.
func (a *admin) Remove(ctx context.Context, id ag.ReplicaID) (err error) {
	defer func(began time.Time) { a.note("remove", id, began, err) }(time.Now())
	return a.operate.Remove(ctx, id)
}

// Replace implements api.Node.
func (a *admin) Replace(ctx context.Context, req api.ReplaceRequest) (r api.TokenResult, err error) {
	defer func(began time.Time) { a.note("replace", req, began, err) }(time.Now())
	return a.operate.Replace(ctx, req)
}

// BackupStep implements api.Node. Of a backup the audit has that it began.
func (a *admin) BackupStep(ctx context.Context, r backup.StepRequest) (out backup.StepAnswer, err error) {
	if r.Step == backup.Start {
		defer func(began time.Time) { a.note("backup", nil, began, err) }(time.Now())
	}
	return a.backups.backupStep(ctx, r)
}

// BackupRun implements api.Node.
func (a *admin) BackupRun(ctx context.Context, r api.BackupRunRequest) (out backup.Run, err error) {
	defer func(began time.Time) { a.note("backup run", r, began, err) }(time.Now())
	return a.backups.backupRun(ctx, r)
}

// Leave implements api.Node.
func (a *admin) Leave(ctx context.Context) (err error) {
	defer func(began time.Time) { a.note("leave", nil, began, err) }(time.Now())
	return a.operate.Leave(ctx)
}

// Resume implements api.Node.
func (a *admin) Resume(ctx context.Context, id ag.ReplicaID) (err error) {
	defer func(began time.Time) { a.note("resume", id, began, err) }(time.Now())
	return a.operate.Resume(ctx, id)
}

// Trust implements api.Node.
func (a *admin) Trust(ctx context.Context, id ag.ReplicaID) (was string, err error) {
	defer func(began time.Time) { a.note("resume --trust", id, began, err) }(time.Now())
	return a.operate.Trust(ctx, id)
}

// Seed implements api.Node.
func (a *admin) Seed(ctx context.Context, req api.SeedRequest) (op any, err error) {
	defer func(began time.Time) { a.note("seed", req, began, err) }(time.Now())
	return a.operate.Seed(ctx, req)
}

// CancelSeeding implements api.Node.
func (a *admin) CancelSeeding(ctx context.Context, id ag.ReplicaID) (op any, err error) {
	defer func(began time.Time) { a.note("seed cancel", id, began, err) }(time.Now())
	return a.operate.CancelSeeding(ctx, id)
}

// Set implements api.Node.
func (a *admin) Set(ctx context.Context, req api.SettingsRequest) (err error) {
	defer func(began time.Time) { a.note("settings", req, began, err) }(time.Now())
	return a.operate.Set(ctx, req)
}

// Major implements api.Node.
func (a *admin) Major(ctx context.Context, req api.MajorRequest) (p api.MajorPlan, err error) {
	if req.Act != api.MajorLook {
		defer func(began time.Time) { a.note("major upgrade", req, began, err) }(time.Now())
	}
	return a.majors.Do(ctx, req)
}
